"""What a user reads when something goes wrong: the sentence that says what, and nothing around it."""

from __future__ import annotations

import difflib
import errno
import importlib.util
import inspect
import logging
import math
import os
import pickle
import re
import shutil
import sys
import sysconfig
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path

from mmcl_lightning._text import plain, plain_lines
from mmcl_lightning.errors import MMCLError

__all__ = ["class_names", "filter_warnings", "main_message", "plain_message", "unknown_arguments"]

#: Lines of jsonargparse's messages that repeat types and values, or are true of every option.
_NOISE = (
    "Does not validate against any of the Union subtypes",
    "Errors:",
    "Expected a <class 'NoneType'>",
    "Expected a path but ",
    "Given value",
    "Subtypes:",
)

#: Kinds of errors that are about what Lightning was given, where Lightning itself raises them.
_COMPLAINTS = {
    "MisconfigurationException",
    "ValueError",
    "TypeError",
    "RuntimeError",
    "OSError",
    "ImportError",
}

#: A full disk, and a full share of one.
_NO_SPACE = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
#: Where code lies that is not somebody's own: this package, installed ones, Python's library.
_PATHS = sysconfig.get_paths()
_NEEDLESS = ("Tip: For seamless cloud", "Loading `train_data", "TPU available: False")
_HERE = str(Path(__file__).parent) + os.sep
_KNOWN = (_HERE, *(_PATHS[name] for name in ("purelib", "platlib", "stdlib")), "<frozen")


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
    near = difflib.get_close_matches(match[2], options - {"self", "kwargs", "args", match[2]}, n=1)
    return match[0] + (f"; did you mean {near[0]!r}?" if near else "")


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
    text = re.sub(r"Expected a dot import path string: (\S+)", _unknown_class, text)
    text = re.sub(r"(\S+): Option '(\w+)' is not accepted", _unknown_option, text)
    text = re.sub(
        _NO_SUBCLASS, r"expected a \1: its options, such as {} for its defaults, or a class_path", text
    )
    text = re.sub(r"<class '(\w+)'>", r"\1", text)
    text = re.sub(r"typing\.Literal\[(.+?)\]", lambda match: match[1].replace(", ", " or "), text)
    text = re.sub(r"(Expected a [^.]+?) Expected a ", r"\1 or ", text).replace("Expected a ", "Expected ")
    if "are required: fit.data, fit.model" in text or '"subcommand"' in text:
        text = (
            text.rstrip(".")
            + ": see mmcl --help; a recipe has all that is needed, as in mmcl fit --config quickstart"
        )
    return where + text


def plain_message(error: BaseException) -> str | None:
    """Message of an error that the user can mend, or ``None`` for one that needs its traceback."""
    cause: BaseException | None = error
    while cause is not None:  # jsonargparse wraps what a constructor raises
        if isinstance(cause, MMCLError):
            text = str(cause)
            # From a worker of a loader the text is the worker's whole traceback, the message last.
            return text.rpartition(f"{type(cause).__name__}: ")[2].strip() if "\nTraceback" in text else text
        cause = cause.__cause__
    chain = _chain(error)
    for part in chain:  # whose fault it is not, wherever it happens
        if isinstance(part, OSError) and part.errno in _NO_SPACE:
            return _no_space(part)
        if killed := re.search(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (.*)", str(part)):
            return _worker_lost(killed[1], killed[2])
    places = [frame.filename for part in chain for frame in traceback.extract_tb(part.__traceback__)]
    if not all(place.startswith(_KNOWN) for place in places):
        return None  # somebody's own code is involved, and has to be found
    if chain[1:] and str(error).startswith(("Does not validate", "Problem with given class_path")):
        return f"{_option(error)}{' '.join(str(chain[-1]).split())}"  # a constructor that jsonargparse called
    places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.strerror}: {error.filename}"
    if isinstance(error, pickle.UnpicklingError):  # of a remote checkpoint, which Lightning reads
        return (
            "the checkpoint is damaged, or holds more than tensors and plain data, which can run code: if "
            "you trust it, set --weights_only false"
        )
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & _COMPLAINTS and places[-1].startswith(_folder("lightning")):  # a check of what it was given
        return " ".join(str(error).split())
    return None


def _no_space(error: OSError) -> str:
    """Name the file and its disk; without a file, the disks that may be meant."""
    places = [error.filename] if error.filename else [os.curdir, tempfile.gettempdir()]
    disks = []
    for place in places:
        folder = Path(os.fsdecode(place)).absolute()
        while not folder.exists():
            folder = folder.parent
        usage = shutil.disk_usage(folder)
        disks.append(f"{place} lies on a disk with {usage.free / 1e6:.0f} of {usage.total / 1e6:.0f} MB free")
    return (
        f"{error.strerror}: {' and '.join(disks)}. Make room, or write elsewhere: runs go to "
        "--trainer.logger.save_dir, temporary files to TMPDIR. Checkpoints that were there are whole"
    )


def _worker_lost(process: str, reason: str) -> str:
    """Say what most likely ended a worker of a loader."""
    signal = re.search(r"killed by signal: ([\w ]+)", reason)
    how = f"was killed ({signal[1]})" if signal else "ended without a word"
    shared = signal is not None and signal[1] == "Bus error"
    what = "shared memory, /dev/shm, is full" if shared else "memory runs out"
    return (
        f"a worker of the data loader, process {process}, {how}, as the system does when {what}: give fewer "
        "--data.num_workers, a smaller --data.batch_size, or more memory"
    )


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those that led to it, the first one last."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    return chain


def _option(error: BaseException) -> str:
    """Name the option whose object could not be built, and the object's class."""
    frames = [frame for part in _chain(error) for frame, _ in traceback.walk_tb(part.__traceback__)]
    options = [frame.f_locals["component"] for frame in frames if "component" in frame.f_locals]
    names = [option.dest for option in options if isinstance(getattr(option, "dest", None), str)]
    built = [frame.f_locals["self"] for frame in frames if frame.f_code.co_name == "__init__"]
    first = [f"{type(part).__name__}: " for part in built if not type(part).__name__.endswith("CLI")]
    return "".join([*(f"{name}: " for name in names[-1:]), *first[:1]])


def unknown_arguments(message: str, known: Iterable[str]) -> str:
    """Add to a message about arguments that nobody takes what was probably meant.

    Args:
        message: The message of the parser.
        known: All options, such as ``--trainer.max_epochs``.
    """
    parts = [option.removeprefix("--").split(".") for option in known]
    for argument in re.findall(r"--([\w.]+)", message):
        wanted = argument.split(".")
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


def _folder(package: str) -> str:
    """Return where a package lies, without importing it."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent)


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    """Leave a full disk, which TensorBoard's thread meets first, to the process: it says so in a sentence."""
    if not (isinstance(ended.exc_value, OSError) and ended.exc_value.errno in _NO_SPACE):
        threading.__excepthook__(ended)


def filter_warnings() -> None:
    """Silence what a run prints without need, such as advertisements; show our own warnings as sentences."""
    threading.excepthook = _thread_ended
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")  # main([...]) in a notebook
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")  # torch_geometric's import
    warnings.filterwarnings("ignore", message="The dirpath has changed")  # every resume gets a new folder
    # Of a checkpoint of an earlier version, whose callbacks Readouts takes up; of others it is worth reading.
    earlier = "OnlineKNN|OnlineLinearProbe|HealthPanel|LogisticReadout|SupportVectorGrid"
    missing = rf".*Please add the following callbacks: \[('({earlier})'(, )?)+\]"
    warnings.filterwarnings("ignore", message=missing)
    warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")  # a frozen backbone
    warnings.filterwarnings("ignore", message=".*this fit will run with no optimizer")  # as it should
    warnings.formatwarning = _format_warning
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    for change in (_no_tip, _plain_record):
        if change not in logger.filters:
            logger.addFilter(change)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our own warnings as sentences; those of others with their place, as usual."""
    if filename.startswith(_HERE):
        return f"warning: {plain(message)}\n"
    return f"{filename}:{lineno}: {plain_lines(message)}\n"


def _no_tip(record: logging.LogRecord) -> bool:
    """Whether a message of Lightning is worth printing."""
    return not any(text in record.getMessage() for text in _NEEDLESS)


def _plain_record(record: logging.LogRecord) -> bool:
    """Let what ``rank_zero_info`` prints steer no terminal; see :func:`~mmcl_lightning._text.say`."""
    record.msg, record.args = plain_lines(record.getMessage()), ()
    return True
