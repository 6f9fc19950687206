"""Images that a network does not take: what it is that does not fit, in a sentence."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mmcl_lightning.errors import ShapeError
from mmcl_lightning.models.backbones import input_channels
from mmcl_lightning.views import all_tensors, is_view

__all__ = ["explained"]

_LIBRARIES = ("torch", "timm", "torchvision")
# What torch and timm say of images that do not fit.
_OTHER_CHANNELS = re.compile(r"expected input\[.*\] to have (\d+) channels, but got (\d+) channels")
_OF_SIZE = re.compile("height|width|size|patch", re.IGNORECASE)
_ONE_VALUE = "more than 1 value per channel"  # of batch norm, of a batch of one image


@contextlib.contextmanager
def explained(module: nn.Module, images: Any) -> Iterator[None]:
    """Say in a sentence why a network refuses images of a wrong number of channels, or of pixels, or graphs.

    Args:
        module: The network that is called within the context.
        images: What it is called with.

    Raises:
        ShapeError: In place of the network's own error, where the images are the cause. Errors of what else
            is called within the context, and those of a user's own code, stay as they are.
    """
    try:
        yield
    except (RuntimeError, AssertionError, ValueError) as error:
        if not isinstance(images, Tensor) or not _refused_by_library(error, module):
            raise
        if images.ndim == 5 and any(isinstance(part, nn.Conv2d) for part in module.modules()):
            raise ShapeError(
                f"the backbone takes images (B, C, H, W), and these are clips {tuple(images.shape)}: set "
                "--model.backbone s3d, or a network of clips of your own"
            ) from error
        if images.ndim != 4:
            raise
        channels, wanted, text = images.shape[1], input_channels(module), str(error)
        size = f"{images.shape[2]} x {images.shape[3]} pixels"
        if "type" in text and (images.dtype == torch.float64 or not images.is_floating_point()):
            raise ShapeError(
                f"the images are of type {images.dtype}, and the backbone takes float32: let the transform "
                "give float32 in [0, 1]"
            ) from error
        if told := _OTHER_CHANNELS.search(text):
            if (wanted, channels) != (
                int(told[1]),
                int(told[2]),
            ):  # a layer within does not fit the one before
                raise
            raise ShapeError(
                f"the images have {channels} channels, and the backbone's first layer takes {wanted}: set "
                f"data.channels, or the backbone's, as in --model.backbone '{{name: resnet18, in_channels: "
                f"{channels}}}'"
            ) from error
        if _OF_SIZE.search(text) and _ONE_VALUE not in text:
            raise ShapeError(
                f"the backbone does not take images of {size} ({text.splitlines()[0]}): set "
                "data.image_size, or give the backbone's, as in --model.backbone "
                f"'{{name: timm:vit_small_patch16_224, img_size: {images.shape[2]}}}'"
            ) from error
        raise
    except (AttributeError, TypeError) as error:
        takes_images = any(isinstance(part, nn.Conv2d) for part in module.modules())
        if all_tensors(images) or not takes_images or not is_view(images):
            raise
        raise ShapeError(
            f"the items are of type {type(images).__name__}, and the backbone takes images: for graphs set "
            "--model.backbone gin:7, with the number of features of a node"
        ) from error


def _refused_by_library(error: Exception, module: nn.Module) -> bool:
    """Whether an error was raised within a module, by a line of a library of networks."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    within = any(frame.f_locals.get("self") is module for frame in frames)
    return within and frames[-1].f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES
