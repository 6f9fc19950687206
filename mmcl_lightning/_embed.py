"""The command ``embed``: representations of a folder of images, from a backbone and without a recipe.

``mmcl embed --checkpoint backbone.pt --data.root PATH --out representations.npz``
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Callback, Trainer

from mmcl_lightning._files import free_path
from mmcl_lightning._next import say_next
from mmcl_lightning._parser import RecipeParser
from mmcl_lightning._text import say
from mmcl_lightning.callbacks import RepresentationWriter
from mmcl_lightning.callbacks.progress import progress_bar
from mmcl_lightning.callbacks.stopping import StopAtOnce
from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.errors import ConfigError, DataError, NumericalError
from mmcl_lightning.modules import PretrainedBackbone
from mmcl_lightning.representations import EmbeddedImages
from mmcl_lightning.representations.command import write_map, write_to_tensorboard
from mmcl_lightning.representations.maps import check_method

__all__ = ["embed", "embed_folder"]

#: Options of the data that a network which is not trained has no use for.
_TRAINING = {
    "augment",
    "batch_size",
    "cache",
    "holdout",
    "seed",
    "task",
    "test_subset",
    "train_subset",
    "train_transform",
    "validation_subset",
}


def embed_folder(
    data: ImageFolderDataModule,
    checkpoint: str,
    backbone: str | dict[str, Any] | None = None,
    cifar_stem: bool | None = None,
    preprocessing: Literal["checkpoint", "data"] = "checkpoint",
    out: str | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    precision: str = "32-true",
    map: Literal["pca", "tsne", "none"] = "pca",
    tensorboard: str | None = None,
) -> None:
    """Write the representations of all images of a folder, with path, label, class and split of each.

    A map of them is written beside the file, see ``mmcl map``.

    Args:
        data: The folder.
        checkpoint: The backbone's weights: a checkpoint of a run, an exported backbone, torchvision's or
            timm's own file, or a published one; or pretrained, for the ImageNet weights of the library that
            has the network.
        backbone: Name of the network, such as resnet50, where the file does not say it, perhaps with options.
        cifar_stem: Whether a ResNet has the stem of small images; by default what the weights have.
        preprocessing: checkpoint: images are made as those that the weights were trained on, where the
            weights say so and the options of data leave it open. data: as the options of data say.
        out: File to write, .npz or .parquet, which must not exist; by default representations.npz, or the
            first of representations_2.npz and so on that is free.
        accelerator: As of Lightning's Trainer: auto, cpu, gpu, ...
        devices: How many of them.
        precision: As of Lightning's Trainer: 32-true, bf16-mixed, ...
        map: How the map is made, or none; tsne needs scikit-learn.
        tensorboard: Folder to write for TensorBoard's projector, with thumbnails; by default none.

    Raises:
        ConfigError: If the network is not known, the weights do not fit it, or ``out`` exists.
        DataError: If no image can be read.
    """
    if map != "none":
        check_method(map)
    folder = None if tensorboard is None else free_path(tensorboard, "")
    writer = RepresentationWriter(out)
    callbacks: list[Callback] = [writer, StopAtOnce()]
    if sys.stderr.isatty():
        callbacks.append(progress_bar())
    trainer = Trainer(
        accelerator=accelerator,
        devices=devices,
        precision=precision,  # type: ignore[arg-type]
        callbacks=callbacks,
        default_root_dir=".",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stderr.isatty(),
    )
    try:
        module = PretrainedBackbone(checkpoint, backbone, cifar_stem, preprocessing)
        trainer.predict(module, data, return_predictions=False)
    except ConfigError as error:  # the options of the command line are those of the module here
        raise ConfigError(str(error).replace("--model.", "--")) from error
    assert writer.target is not None
    if trainer.is_global_zero:
        if map != "none" or folder is not None:
            _show(writer.target, data, map, folder)
        say_next("embed", file=writer.target, root=data.root)


def _show(
    file: Path, data: ImageFolderDataModule, method: Literal["pca", "tsne", "none"], folder: Path | None
) -> None:
    """Write a map of what was written, and the folder of the projector."""
    images = EmbeddedImages.read(str(file))
    if folder is not None:
        write_to_tensorboard(images, folder, Path(data.root).expanduser(), data.reader)
    if method != "none":
        try:
            write_map(images, file, method, free_path(None, file.with_suffix(".png")))
        except (DataError, NumericalError) as error:  # the representations are there all the same
            say(f"no map: {error}")


def embed(arguments: list[str]) -> None:
    """Run ``mmcl embed``.

    Args:
        arguments: What stands after ``embed`` on the command line.
    """
    parser = RecipeParser(
        prog="mmcl embed",
        description="Write the representations of all images of a folder, with path, label, class and split.",
    )
    parser.add_function_arguments(embed_folder, skip={"data"})
    parser.add_class_arguments(ImageFolderDataModule, "data", skip=_TRAINING)
    parser.set_defaults({"data.on_bad_image": "skip"})
    options = parser.instantiate_classes(parser.parse_args(arguments))
    options.data.holdout = 0.0  # of a folder without splits nothing is held out
    embed_folder(**options)
