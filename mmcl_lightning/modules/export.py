"""A backbone's weights alone, for other projects: ``export_backbone`` and ``mmcl export``."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Literal

from torch import nn

from mmcl_lightning._files import free_path
from mmcl_lightning._options import check_choice, check_flags
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
    overwrite: bool = False,
) -> str:
    """Write the backbone of a checkpoint alone, read it back by the library of the format, and compare h.

    ``"torchvision"`` writes a state dict under the backbone's own key names. For a ResNet these are
    torchvision's, so that ``torchvision.models.resnet50()`` takes them with exactly ``fc.weight`` and
    ``fc.bias`` missing. The state dict tells in the attribute ``mmcl_lightning`` of which network it is and
    how its images were made, as safetensors does in its metadata; evaluations read that.

    Args:
        checkpoint: What :func:`read_backbone` reads.
        out: File to write, for ``"huggingface"`` a folder; it appears when it is whole, and must not exist.
            None for ``backbone`` with the usual ending, or the first free one of ``backbone_2`` and so on.
        format: ``"torchvision"``; ``"timm"``, a state dict for ``timm.create_model``; ``"safetensors"``;
            ``"onnx"``, the network too; ``"huggingface"``, a folder for the hub, in timm's layout.
        backbone: Name of the network; None for what the checkpoint says.
        cifar_stem: Stem of a torchvision ResNet for small images; None for what the weights have.
        overwrite: Replace a file of that name.

    Returns:
        One line: what was written, how to load it, and how far h differs.

    Raises:
        ConfigError: If the checkpoint cannot be read or has weights that are not finite, ``out`` cannot be
            written to, a package is missing, or the format has no such network.
        NumericalError: If what was written gives another h.
    """
    check_choice("format", format, FORMATS)
    check_flags(overwrite=overwrite)
    chosen, file = FORMATS[format], read_backbone(checkpoint)
    if missing := missing_packages(chosen.needs):
        raise ConfigError(
            f'format {format!r} needs {", ".join(missing)}: pip install "mmcl-lightning[export]"'
        )
    target = _target(checkpoint, out, chosen.default, overwrite)
    broken = [key for key, value in file.weights.items() if not value.isfinite().all()]
    if broken:
        raise ConfigError(
            f"{checkpoint}: {broken[0]} is not finite: the training had failed; nothing is written"
        )
    source = _source(checkpoint, backbone, cifar_stem)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as place:
        draft = Path(place) / target.name
        try:
            said = chosen.write(source, draft)
        except Exception as error:
            if "No space left on device" in str(error):  # of safetensors, which has an error of its own
                raise OSError(errno.ENOSPC, "No space left on device", str(target)) from error
            raise
        _give_usual_mode(draft, Path(place) / f"{target.name}.new")
        os.replace(draft, target)
    stem = ", with the 3x3 stem of small images" if source.cifar_stem else ""
    return f"Wrote {target}: {len(file.weights)} tensors of {source.name or 'the backbone'}{stem}; {said}"


def _target(checkpoint: str, out: str | None, default: str, overwrite: bool) -> Path:
    """Return where to write.

    Raises:
        ConfigError: If something is there that must stay.
    """
    path = Path(default if out is None else out)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: give the name of a file, or folder, to write")
    if os.path.realpath(path) == os.path.realpath(checkpoint):
        raise ConfigError(f"{path} is the checkpoint itself: give another name to write to")
    if not overwrite:
        return free_path(out, default)
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise ConfigError(f"{path} is a link, a pipe or a device, which is never replaced: give another name")
    return path


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
