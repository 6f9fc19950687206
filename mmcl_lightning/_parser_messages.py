"""What jsonargparse says of a wrong option, in a sentence."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import sys
from collections.abc import Iterable

__all__ = ["class_names", "main_message", "unknown_arguments"]

#: Lines of jsonargparse's messages that repeat types and values, or are true of every option.
_NOISE = (
    "Does not validate against any of the Union subtypes",
    "Errors:",
    "Expected a <class 'NoneType'>",
    "Expected a path but ",
    "Given value",
    "Subtypes:",
)


def class_names() -> set[str]:
    """Names that a configuration can use without their module."""
    from mmcl_lightning import callbacks, datamodules, kernels, losses, models, modules, svm, transforms

    homes = (callbacks, datamodules, kernels, losses, models, modules, svm, transforms)
    return {name for home in homes for name in home.__all__ if hasattr(home, name)}  # which imports it


_NO_SUBCLASS = r"Not a valid subclass of (\w+) Subclass types expect one of: .*?implicit class_path\)"
#: Callbacks of an earlier version, and where their options are now.
_MOVED = {
    "HealthPanel": "health",
    "LogisticReadout": "logistic",
    "OnlineLinearProbe": "probe",
    "SupportVectorGrid": "support_vectors",
}


#: Modules of others that a configuration may name, and the extra of this package that has them.
_EXTRAS = {
    "av": "video", "cv2": "flow", "matplotlib": "report", "pl_bolts": "bolts", "pyarrow": "parquet",
    "scipy": "evaluate", "tifffile": "tiff", "torch_geometric": "graph", "webdataset": "stream",
}  # fmt: skip


def _unknown_class(match: re.Match[str]) -> str:
    if match[1] in ("true", "True"):
        return "expected options, such as {} for the defaults, got true"
    if match[1] in class_names():
        return f"{match[1]} is of another kind than this option takes"
    near = difflib.get_close_matches(match[1], class_names(), n=1)
    hint = (
        f"; did you mean {near[0]}?" if near else ": give one of ours by name, others as package.module.Class"
    )
    return f"there is no class {match[1]!r}{hint}"


def _unknown_option(match: re.Match[str]) -> str:
    module, _, name = match[1].rpartition(".")
    kind = getattr(sys.modules.get(module), name, None)
    classes = kind.__mro__ if isinstance(kind, type) else ()
    inits = [vars(cls)["__init__"] for cls in classes if callable(vars(cls).get("__init__"))]
    options = {option for init in inits[:-1] for option in inspect.signature(init).parameters}
    near = [f"{part}.{match[2]}" for part in _parts_with(match[2]) if part in options]
    near += difflib.get_close_matches(match[2], options - {"self", "kwargs", "args", match[2]}, n=1)
    return match[0] + (f"; did you mean {near[0]!r}?" if near else "")


def _parts_with(option: str) -> list[str]:
    """Return which options of a module, kernel or solver, are of a class that has an option itself."""
    from mmcl_lightning import kernels, svm

    homes = {"kernel": kernels, "solver": svm}
    return [
        part
        for part, home in homes.items()
        for kind in (getattr(home, name) for name in home.__all__)
        if isinstance(kind, type) and option in inspect.signature(kind).parameters
    ]


def main_message(message: str) -> str:
    """Reduce a nested message of jsonargparse to ``key.of.the.option: what is wrong``."""
    keys, lines, depth = [], [], math.inf
    for line in message.splitlines():
        text = line.strip().removeprefix("- ")
        indent = len(line) - len(line.lstrip())
        if line.strip().startswith("- ") and indent <= depth < math.inf:
            break  # what else the option takes, where a class was named
        if line.strip().startswith("- Problem with given class_path"):
            depth = indent
        if key := re.fullmatch(r'Parser key "(.+)":', text):
            keys.append(key[1])
        elif text and not text.startswith(_NOISE):
            lines.append(re.sub(r"^Problem with given class_path '(.+)':$", r"\1:", text))
    if not lines:
        return message
    where = f"{'.'.join(keys)}: " if keys else ""
    moved = re.search(rf"\b({'|'.join(_MOVED)})\b", message)
    if moved and "callbacks" in where:
        return f"{where}{moved[1]} is a readout, no callback: give its options as readouts.{_MOVED[moved[1]]}"
    text = " ".join(dict.fromkeys(lines))
    if absent := re.search(r"No module named '([\w.]+)'", text):
        extra = _EXTRAS.get(absent[1].partition(".")[0])
        how = f': pip install "mmcl-lightning[{extra}]"' if extra else ": install it, or correct class_path"
        return f"{where}there is no module {absent[1]}{how}"
    # Of a callable, such as an optimizer, the class stands at the end of the message alone.
    given = re.search(r"\.? Got value: Namespace\(class_path='(.+?)'.*", message)
    text = text.replace(given[0], "") if given else text
    text = re.sub(
        r"Type typing\.Callable\[.+?\] expects a function or a callable class: (?:Parser key \"(.+?)\": )?",
        lambda match: "".join(f"{part}: " for part in (given and given[1], match[1]) if part),
        text,
    )
    came = re.search(r"Given value: (?:NestedArg\(key='\S*', val='(.+)'\)|(.+))", message)
    text = _in_words(text)
    if came and "Expected " in text and "Got value" not in text:
        text = f"{text.rstrip('.')}. Got value: {came[1] or came[2].partition('. Got value: ')[0]}"
    return where + text


def _in_words(text: str) -> str:
    """Put a sentence in place of what names types and classes of Python."""
    text = re.sub(r"(Expected a <class '\w+'>) Expected a dot import path string: \S+", r"\1", text)
    text = re.sub(r"Expected a dot import path string: (\S+)", _unknown_class, text)
    text = re.sub(
        r"(?:\w+\.)*Lightning(?:Data)?Module: Option '([\w.]+)' is not accepted",
        r"\1 is given before any class that has it: name the recipe first, then overlays and options",
        text,
    )
    text = re.sub(r"(\S+): Option '(\w+)' is not accepted", _unknown_option, text)
    text = re.sub(
        _NO_SUBCLASS, r"expected a \1: its options, such as {} for its defaults, or a class_path", text
    )
    text = re.sub(r"<class '(\w+)'>", r"\1", text)
    text = re.sub(r"typing\.Literal\[(.+?)\]", lambda match: match[1].replace(", ", " or "), text)
    before, *expected = text.split("Expected a ")
    if expected:
        text = f"{before}Expected {' or '.join(part.strip() for part in expected)}"
    if "are required: fit.data, fit.model" in text or '"subcommand"' in text:
        text = (
            text.rstrip(".")
            + ": see mmcl --help; a recipe has all that is needed, as in mmcl fit --config quickstart"
        )
    return text


def unknown_arguments(message: str, known: Iterable[str]) -> str:
    """Add to a message about arguments that nobody takes what was probably meant.

    Args:
        message: The message of the parser.
        known: All options, such as ``--trainer.max_epochs``.
    """
    parts = [option.removeprefix("--").split(".") for option in known]
    for argument in re.findall(r"--([\w.]+)", message):
        wanted = argument.split(".")
        if len(wanted) == 1:
            below = sorted(".".join(part) for part in parts if len(part) > 1 and part[-1] == argument)
            if 0 < len(below) < 4:
                return f"{message}; did you mean {' or '.join(f'--{option}' for option in below)}?"
        for depth in range(1, len(wanted) + 1):
            beside = {
                part[depth - 1]
                for part in parts
                if part[: depth - 1] == wanted[: depth - 1] and part[depth - 1 :]
            }
            if beside and wanted[depth - 1] not in beside:
                near = difflib.get_close_matches(wanted[depth - 1], beside, n=1)
                meant = ".".join([*wanted[: depth - 1], *near, *wanted[depth:]])
                if near:
                    return f"{message}; did you mean --{meant}?"
                above = "".join(f"{part}." for part in wanted[: depth - 1])
                few = ", ".join(f"--{above}{name}" for name in sorted(beside))
                return f"{message}; there are {few}" if len(beside) < 12 and depth > 1 else message
    return message
