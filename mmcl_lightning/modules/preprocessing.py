"""How a module learns from its data module, or tells it, how images reach the backbone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torchvision
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from mmcl_lightning.datamodules import ImageDataModule
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.transforms import EvalTransform

__all__ = ["compare_with_checkpoint", "preprocessing_of", "published_preprocessing", "take_over"]


def preprocessing_of(module: Any) -> Preprocessing | None:
    """Return how the images of a module's data module are made, or None for any other data module.

    Args:
        module: A module with a trainer.
    """
    datamodule = getattr(module.trainer, "datamodule", None)
    return datamodule.preprocessing() if isinstance(datamodule, ImageDataModule) else None


def take_over(module: Any, keep_data: bool = False) -> None:
    """Let the data module make images as those that the weights of a module were trained on.

    Args:
        module: A module with a trainer; its ``preprocessing`` says what came with the weights, and afterwards
            what is done, None if nobody knows.
        keep_data: Leave the data module as it is, unless what came is the module's own.

    Raises:
        ConfigError: If the options of the data module say otherwise.
    """
    datamodule = getattr(module.trainer, "datamodule", None)
    found = None if module.preprocessing is None else Preprocessing.from_plain(module.preprocessing)
    if not isinstance(datamodule, ImageDataModule):
        how = "the weights do not say how" if found is None else f"of {found}"
        rank_zero_info(f"images have to be made as those that the weights were trained on: {how}")
        module.preprocessing = None
        return
    if found is None:
        size = "--data.image_size, " * hasattr(datamodule, "image_size")
        rank_zero_info(
            "the weights do not say how their images were made, and need them made the same way. Here they "
            f"are of {datamodule.preprocessing()}: {size}--data.mean and --data.std change that"
        )
    elif not keep_data or module.own_preprocessing:
        datamodule.take_over(found, strict=not keep_data)
    module.preprocessing = datamodule.preprocessing().to_plain()


def compare_with_checkpoint(module: Any, checkpoint: dict[str, Any]) -> None:
    """Warn where a checkpoint that is taken up was made on images made in another way than those of now.

    Args:
        module: A module with a trainer.
        checkpoint: Its checkpoint.
    """
    made, before = preprocessing_of(module), checkpoint.get("preprocessing")
    if made is None or before is None:
        return
    found = Preprocessing.from_plain(before)
    if found.text and found.text != made.text:
        rank_zero_warn(f"the checkpoint was made on images of {found}; these are of {made}")


def published_preprocessing(options: Mapping[str, Any], network: Any) -> Preprocessing:
    """Return how the library of a network makes images for its published weights.

    Images are resized bicubic here, whatever the library does. Weights that timm adapted to another number of
    channels leave mean, std and transform open.

    Args:
        options: Name of a torchvision ResNet, or ``"timm:NAME"``, and options that it was built with.
        network: The network, which timm has told of its weights.
    """
    if options["name"].startswith("timm:"):
        told = network.pretrained_cfg
        channels, height, width = told["input_size"]
        size = options.get("img_size") or (height, width)
        height, width = (size, size) if isinstance(size, int) else size
        resize, mean, std = math.floor(min(height, width) / told["crop_pct"]), told["mean"], told["std"]
    else:
        told = torchvision.models.get_model_weights(options["name"]).DEFAULT.transforms()
        height = width = told.crop_size[0]
        channels, resize, mean, std = 3, told.resize_size[0], told.mean, told.std
    if (taken := options.get("in_channels", channels)) != channels:
        text = f"{height} x {width} pixels and {channels} channels"
        return Preprocessing(None, (height, width), None, taken, text=text)
    crop = height if height == width else (height, width)
    transform = EvalTransform(resize, crop, tuple(mean), tuple(std))
    return Preprocessing.of(transform, (height, width), (height, width), channels)
