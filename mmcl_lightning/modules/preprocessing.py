"""How a module learns from its data module, or tells it, how images reach the backbone."""

from __future__ import annotations

from typing import Any

import torchvision
from lightning.pytorch.utilities import rank_zero_info

from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.transforms import EvalTransform

__all__ = ["preprocessing_of", "published_preprocessing", "take_over"]


def preprocessing_of(module: Any) -> Preprocessing | None:
    """Return how the images of a module's data module are made, or None for a data module of others.

    Args:
        module: A module with a trainer.
    """
    ask = getattr(getattr(module.trainer, "datamodule", None), "preprocessing", None)
    return ask() if callable(ask) else None


def take_over(module: Any, keep_data: bool = False) -> None:
    """Let the data module make images as those that the weights of a module were trained on.

    Args:
        module: A module with a trainer; its ``preprocessing`` says what came with the weights, and afterwards
            what is done.
        keep_data: Leave the data module as it is.

    Raises:
        ConfigError: If the options of the data module say otherwise.
    """
    datamodule: Any = getattr(module.trainer, "datamodule", None)
    found = module.preprocessing
    if not hasattr(datamodule, "take_over"):
        return
    if found is None:
        rank_zero_info("the weights do not say how their images were made: data has to have it the same way")
    elif not keep_data:
        datamodule.take_over(Preprocessing.from_plain(found))
    module.preprocessing = datamodule.preprocessing().to_plain()


def published_preprocessing(name: str, network: Any) -> Preprocessing:
    """Return how the library of a network makes images for its published weights.

    Images are resized bicubic here, whatever the library does.

    Args:
        name: Name of a torchvision ResNet, or ``"timm:NAME"``.
        network: The network, which timm has told of its weights.
    """
    if name.startswith("timm:"):
        told = network.pretrained_cfg
        channels, height, width = told["input_size"]
        resize, mean, std = round(min(height, width) / told["crop_pct"]), told["mean"], told["std"]
    else:
        told = torchvision.models.get_model_weights(name).DEFAULT.transforms()
        height = width = told.crop_size[0]
        channels, resize, mean, std = 3, told.resize_size[0], told.mean, told.std
    crop = height if height == width else (height, width)
    transform = EvalTransform(resize, crop, tuple(mean), tuple(std))
    return Preprocessing(transform, (height, width), (height, width), channels)
