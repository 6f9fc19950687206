"""What tables and plots call runs: short, and no two alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from mmcl_lightning.studies.options import flat_options, varying

__all__ = ["distinct_names", "method_name", "option_words"]

_PRETRAININGS = {"NTXent": "SimCLR"}  # by the method of the record, which is a loss
_EVALUATIONS = {
    "LinearEvaluation": "linear evaluation",
    "FineTune": "fine-tuning",
    "LogisticEvaluation": "logistic regression",
    "FewShotEvaluation": "few-shot classification",
    "SurfaceNormals": "surface normals",
    "Detection": "detection",
}
_LONGEST = 32  # characters of a value
#: Last parts of names of options that say what a part is, as those before them say which part.
_KINDS = ("class_path", "live_object", "name")


def method_name(method: str, origin: str | None, checkpoint: str | None) -> str:
    """Return what a table calls a run without a label.

    Args:
        method: Method of its record.
        origin: Name of the pretraining that it evaluates, where the record of that one is known.
        checkpoint: File that it evaluates, or ``"random"``.
    """
    if origin is None and checkpoint is None:
        return _PRETRAININGS.get(method, method)
    if origin is not None:
        judged = _PRETRAININGS.get(origin, origin)
    elif checkpoint == "random":
        judged = "a random start"
    else:
        parts = [part for part in PurePath(str(checkpoint)).parts if part != "checkpoints"]
        judged = "/".join(parts[-3:])
    return f"{_EVALUATIONS.get(method, method)} of {judged}"


def distinct_names(name: str, configs: Sequence[dict[str, Any]]) -> list[str]:
    """Return a name for each of several configurations that would have the same, with what they differ in.

    Networks, classes and the length of the training are always said where they differ, such as a kernel of
    one's own; of other options as few as tell the configurations apart.

    Args:
        name: What they are called.
        configs: The configurations.
    """
    options = [flat_options(config) for config in configs]
    differing = [
        key for key in varying(configs) if not key.endswith(("data.init_args.seed", "seed_everything"))
    ]
    differing.sort(key=lambda key: (".backbone" not in key, not _is_kind(key), key.startswith("trainer")))
    chosen = [key for key in differing if _is_kind(key) or key in ("trainer.max_epochs", "trainer.max_steps")]
    for key in (key for key in differing if key not in chosen):  # as few as tell them apart
        if len(set(_said(options, chosen))) == len(configs):
            break
        if len(set(_said(options, [*chosen, key]))) > len(set(_said(options, chosen))):
            chosen.append(key)
    said = _said(options, chosen)
    numbers = [said[: index + 1].count(words) for index, words in enumerate(said)]
    ends = [
        ", ".join(filter(None, (words, "" if n == 1 else f"no. {n}")))
        for words, n in zip(said, numbers, strict=True)
    ]
    return [f"{name} ({end})" if end else name for end in ends]


def option_words(key: str, value: Any) -> str:
    """Return an option and its value in few words: ``C=1.0``, ``solver=Exact``, ``with EarlyStopping``.

    Args:
        key: Dotted name of the option.
        value: Its value; None where it is not set.
    """
    parts = key.split(".")
    if "callbacks" in parts[-2:-1]:  # the class of a callback
        return f"{'with' if value else 'without'} {parts[-1]}"
    if _is_kind(key):
        return f"{parts[-2]}={str(value) if parts[-1] == 'name' else str(value).rpartition('.')[2]}"
    text = str(value)
    return f"{parts[-1]}={text if len(text) <= _LONGEST else text[: _LONGEST - 3] + '...'}"


def _said(options: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str]:
    """Return the options of each in words; a class or name that is not set says nothing."""
    shown = [[key for key in keys if not (_is_kind(key) and given.get(key) is None)] for given in options]
    return [
        ", ".join(option_words(key, given.get(key)) for key in keys)
        for keys, given in zip(shown, options, strict=True)
    ]


def _is_kind(key: str) -> bool:
    """Whether an option says of which class a part is, or which network."""
    _, _, last = key.rpartition(".")
    return last in _KINDS[:2] or key.endswith("backbone.name")
