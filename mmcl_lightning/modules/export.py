"""A backbone's weights alone, for other projects: ``export_backbone`` and ``mmcl export``."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from mmcl_lightning._checkpoints import write_file
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.modules.weights import EXPORTED, read_backbone

__all__ = ["export_backbone"]


def export_backbone(checkpoint: str, out: str) -> str:
    """Write the weights of a checkpoint's backbone alone, under the backbone's own key names.

    For a ResNet these are torchvision's, so that ``torchvision.models.resnet50()`` takes them with exactly
    ``fc.weight`` and ``fc.bias`` missing. The file is a state dict, which tells in the attribute
    ``mmcl_lightning`` of which network it is and how its images were made; evaluations read that.

    Args:
        checkpoint: What :func:`read_backbone` reads.
        out: File to write; it appears when it is whole.

    Returns:
        One line: what was written, and how to load it.

    Raises:
        ConfigError: If the checkpoint cannot be read or has weights that are not finite, or ``out`` is a
            folder or the checkpoint.
    """
    file, target = read_backbone(checkpoint), Path(out)
    if target.is_dir():
        raise ConfigError(f"{out} is a folder: give the name of the file to write")
    if target.resolve() == Path(checkpoint).resolve():
        raise ConfigError(f"{out} is the checkpoint itself: give another name to write to")
    broken = [key for key, value in file.weights.items() if not value.isfinite().all()]
    if broken:
        raise ConfigError(
            f"{checkpoint}: {broken[0]} is not finite: the training had failed; nothing is written"
        )
    weights = OrderedDict((key, value.contiguous().clone()) for key, value in file.weights.items())
    network = {name: file.options[name] for name in ("backbone", "cifar_stem") if name in file.options}
    setattr(weights, EXPORTED, {"hyper_parameters": network, "preprocessing": file.preprocessing})
    write_file(weights, target)
    name = file.options.get("backbone", "the backbone")
    stem = ", with the 3x3 stem of small images" if file.options.get("cifar_stem") else ""
    return f"Wrote {out}: {len(file.weights)} tensors of {name}{stem}; read it with torch.load({out!r})"
