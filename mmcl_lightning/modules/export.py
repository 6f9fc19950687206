"""A backbone's weights alone, for other projects: ``export_backbone`` and ``mmcl export``."""

from __future__ import annotations

import shutil
import stat
import tempfile
from pathlib import Path
from typing import Literal

from torch import nn

from mmcl_lightning._options import check_choice
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.modules.formats import FORMATS, Source, missing_packages
from mmcl_lightning.modules.weight_files import read_backbone
from mmcl_lightning.modules.weights import backbone_from

__all__ = ["export_backbone"]


def export_backbone(
    checkpoint: str,
    out: str | None = None,
    format: Literal["torchvision", "timm", "safetensors", "onnx", "huggingface"] = "torchvision",
    backbone: str | None = None,
    cifar_stem: bool | None = None,
) -> str:
    """Write the backbone of a checkpoint alone, read it back by the library of the format, and compare h.

    ``"torchvision"`` writes a state dict under the backbone's own key names. For a ResNet these are
    torchvision's, so that ``torchvision.models.resnet50()`` takes them with exactly ``fc.weight`` and
    ``fc.bias`` missing. The state dict tells in the attribute ``mmcl_lightning`` of which network it is and
    how its images were made, as safetensors does in its metadata; evaluations read that.

    Args:
        checkpoint: What :func:`read_backbone` reads.
        out: File to write, which appears when it is whole and replaces one of its name; for
            ``"huggingface"`` a folder that does not exist. None for ``backbone`` with the usual ending.
        format: ``"torchvision"``; ``"timm"``, a state dict for ``timm.create_model``; ``"safetensors"``;
            ``"onnx"``, the network too; ``"huggingface"``, a folder for the hub, in timm's layout.
        backbone: Name of the network; None for what the checkpoint says.
        cifar_stem: Stem of a torchvision ResNet for small images; None for what the weights have.

    Returns:
        One line: what was written, how to load it, and how far h differs.

    Raises:
        ConfigError: If the checkpoint cannot be read or has weights that are not finite, ``out`` cannot be
            written to, a package is missing, or the format has no such network.
        NumericalError: If what was written gives another h.
    """
    check_choice("format", format, FORMATS)
    chosen, file = FORMATS[format], read_backbone(checkpoint)
    if missing := missing_packages(chosen.needs):
        raise ConfigError(
            f'format {format!r} needs {" and ".join(missing)}: pip install "mmcl-lightning[export]"'
        )
    target = Path(chosen.default if out is None else out)
    if target.is_dir():
        raise ConfigError(f"{target} is a folder: give the name of a file, or folder, to write")
    if target.resolve() == Path(checkpoint).resolve():
        raise ConfigError(f"{target} is the checkpoint itself: give another name to write to")
    broken = [key for key, value in file.weights.items() if not value.isfinite().all()]
    if broken:
        raise ConfigError(
            f"{checkpoint}: {broken[0]} is not finite: the training had failed; nothing is written"
        )
    source = _source(checkpoint, backbone, cifar_stem)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as place:
        draft = Path(place) / target.name
        said = chosen.write(source, draft)
        _give_usual_mode(draft, Path(place) / f"{target.name}.new")
        shutil.move(draft, target)
    stem = ", with the 3x3 stem of small images" if source.cifar_stem else ""
    return f"Wrote {target}: {len(file.weights)} tensors of {source.name or 'the backbone'}{stem}; {said}"


def _give_usual_mode(written: Path, new: Path) -> None:
    """Let files be as readable as new files are: safetensors makes its own for their owner alone."""
    new.touch()
    for path in [written, *written.rglob("*")]:
        if path.is_file():
            path.chmod(stat.S_IMODE(new.stat().st_mode))


def _source(checkpoint: str, backbone: str | None, cifar_stem: bool | None) -> Source:
    """Build the network of a checkpoint, if it says which it is."""
    file = read_backbone(checkpoint)
    choice = file.options.get("backbone") if backbone is None else backbone
    if choice is None or (isinstance(choice, dict) and "live_object" in choice):
        return Source(file, None, "", bool(file.options.get("cifar_stem")))
    network: nn.Module
    network, described, _ = backbone_from(checkpoint, choice, cifar_stem)
    name = choice.get("name", "") if isinstance(choice, dict) else choice
    return Source(file, network.eval(), name, described["cifar_stem"])
