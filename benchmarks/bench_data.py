"""Pairs of views per second of one CPU core, from JPEG files: by a worker, for the device, and by others.

    python benchmarks/bench_data.py [--device cuda] [--small PATH] [--middle PATH] [--large PATH]

PATH are folders of JPEGs with a folder for each class, about 32, 96 and 500 pixels long; without them
pictures are made up. All sides decode the same files, and make two views of each by the recipe's
augmentation. *worker* is `augment: worker`; *loader* is what is left to a worker with `augment: device`;
*loader and device* is all of it on this core, as where there is no GPU. torchvision's v2 transforms with
the same distributions, lightly's SimCLRTransform and kornia's augmentations are timed where they are
installed (kornia takes a batch of one size, so whole files are resized first). Then a whole `fit` of conv4
at 32 pixels. Prints a table and writes ``data_<device>.json`` and its section of ``data.md``.
"""

from __future__ import annotations

import importlib.util
import io
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import common  # first: it puts a clone's root on the path
import lightning.pytorch as pl
import numpy as np
import torch
from common import Target, number, ratio
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from mmcl_lightning.datamodules import ImageFolderDataModule
from mmcl_lightning.modules import SimCLR
from mmcl_lightning.transforms import SimCLRTransform

#: Pixels of a view, those of made-up files, and the recipe.
CASES: dict[str, tuple[int, tuple[int, int], Callable[[], SimCLRTransform]]] = {
    "small": (32, (32, 32), partial(SimCLRTransform.cifar, 32)),
    "middle": (96, (96, 96), partial(SimCLRTransform.imagenet, 96)),
    "large": (224, (500, 375), partial(SimCLRTransform.imagenet, 224)),
}


def put_files(root: Path, count: int, size: tuple[int, int], given: Path | None) -> None:
    """Put JPEGs of one class under a root: evenly spaced ones of a folder, or smooth made-up pictures.

    Raises:
        SystemExit: If the folder has too few.
    """
    draws, folder = np.random.default_rng(0), root / "train" / "all"
    folder.mkdir(parents=True)
    found = [] if given is None else sorted(given.rglob("*.jp*g"))
    if given is not None and len(found) < count:
        raise SystemExit(f"{given} holds {len(found)} JPEGs, and --images asks for {count}")
    for index in range(count + 1):
        path = folder / f"{index:04d}.jpg"
        if index == count:  # one that is held out, so that none of the others is
            path = root / "test" / "all" / path.name
            path.parent.mkdir(parents=True)
        if found and index < count:
            path.symlink_to(found[index * len(found) // count].resolve())
        else:
            pixels = draws.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(path, quality=90)


def module(
    root: Path, transform: SimCLRTransform, augment: str, count: int, cache: bool = False
) -> ImageFolderDataModule:
    """A data module that reads ``count`` files in batches of 64."""
    data = ImageFolderDataModule(
        str(root), augment=augment, train_transform=transform, batch_size=min(64, count),
        image_size=transform.size, num_workers=0, cache=cache,
    )  # fmt: skip
    data.setup()
    return data


def read(loader: Any, device: torch.device | None = None) -> int:
    """Read an epoch, and make the views on a device; return how many images there were."""
    count = 0
    for views, targets in loader:
        if device is not None:
            views.to(device, non_blocking=True)
        count += len(targets)
    return count


def torchvision_pair(transform: SimCLRTransform) -> Callable[[Any], Any]:
    """Give two views by torchvision's own parts, distributed as ours are."""
    cubic = transform.interpolation == "bicubic"
    mode = v2.InterpolationMode.BICUBIC if cubic else v2.InterpolationMode.BILINEAR
    crop = transform.size, transform.crop_scale, transform.crop_ratio, mode
    pipeline = v2.Compose([
        v2.ToImage(),
        v2.RandomResizedCrop(*crop, antialias=True),
        v2.RandomHorizontalFlip(transform.hflip_prob),
        v2.RandomApply([v2.ColorJitter(*transform.jitter)], transform.cj_prob),
        v2.RandomGrayscale(transform.gray_prob),
        v2.RandomApply([v2.GaussianBlur(transform.blur_kernel, transform.blur_sigma)], transform.blur_prob),
        v2.ToDtype(torch.float32, scale=True),
    ])  # fmt: skip
    return lambda image: [pipeline(image), pipeline(image)]


def lightly_pair(transform: SimCLRTransform) -> Callable[[Any], Any]:
    """Give two views by lightly's SimCLR transform with the same probabilities."""
    from lightly.transforms import SimCLRTransform as Theirs

    brightness, contrast, saturation, hue = transform.jitter
    pair: Callable[[Any], Any] = Theirs(
        transform.size, cj_prob=transform.cj_prob, cj_strength=1.0, cj_bright=brightness,
        cj_contrast=contrast, cj_sat=saturation, cj_hue=hue, random_gray_scale=transform.gray_prob,
        gaussian_blur=transform.blur_prob, sigmas=transform.blur_sigma, normalize=None,
    )  # fmt: skip
    return pair


def by_kornia(transform: SimCLRTransform, paths: Sequence[str]) -> Callable[[], None]:
    """Give two views by kornia, a whole batch at once, each image with parameters of its own."""
    import kornia.augmentation as K

    size, kernel = transform.size, transform.blur_kernel
    pipeline = K.AugmentationSequential(
        K.RandomResizedCrop((size, size), transform.crop_scale, transform.crop_ratio),
        K.RandomHorizontalFlip(p=transform.hflip_prob),
        K.ColorJitter(*transform.jitter, p=transform.cj_prob),
        K.RandomGrayscale(p=transform.gray_prob),
        K.RandomGaussianBlur((kernel, kernel), transform.blur_sigma, p=transform.blur_prob),
        same_on_batch=False,
    )
    height, width = np.asarray(Image.open(paths[0])).shape[:2]

    def call() -> None:
        for start in range(0, len(paths), 64):
            images = [
                Image.open(path).convert("RGB").resize((width, height)) for path in paths[start : start + 64]
            ]
            pixels = torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)
            for _ in range(2):
                pipeline(pixels.float().div(255))

    return call


def our_sides(
    root: Path, transform: SimCLRTransform, count: int, device: torch.device, cache: bool = False
) -> dict[str, Callable[[], object]]:
    """What is timed of this package."""
    augments = ("worker", "device")
    loaders = {a: module(root, transform, a, count, cache).train_dataloader() for a in augments}
    return {
        "worker": partial(read, loaders["worker"]),
        "loader": partial(read, loaders["device"]),
        "loader and device": partial(read, loaders["device"], device),
    }


def sides(
    root: Path, transform: SimCLRTransform, count: int, device: torch.device
) -> dict[str, Callable[[], object]]:
    """What is timed on the same files."""
    paths = [str(path) for path in sorted((root / "train").rglob("*.jpg"))]
    found = our_sides(root, transform, count, device)
    others = {"torchvision": torchvision_pair, "lightly": lightly_pair}
    for name, build in others.items():
        if importlib.util.find_spec(name) is not None:
            folder = ImageFolder(str(root / "train"), build(transform))
            loader = torch.utils.data.DataLoader(folder, batch_size=min(64, count))
            found[name] = partial(read, loader)
    if importlib.util.find_spec("kornia") is not None:
        found["kornia"] = by_kornia(transform, paths)
    return found


def decoding(root: Path) -> dict[str, Callable[[], object]]:
    """Decode the files by Pillow, as the data modules do, and by torchvision; both have them in memory."""
    contents = [path.read_bytes() for path in sorted((root / "train").rglob("*.jpg"))]
    tensors = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
    return {
        "Pillow": lambda: [
            np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content in contents
        ],
        "decode_jpeg": lambda: [decode_jpeg(tensor, mode=ImageReadMode.RGB) for tensor in tensors],
    }


def fit(root: Path, augment: str, count: int, device: torch.device) -> None:
    """Train conv4 by SimCLR for an epoch."""
    data = module(root, SimCLRTransform.cifar(32), augment, count)
    run = pl.Trainer(
        max_epochs=1, accelerator=device.type, devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    run.fit(SimCLR(backbone="conv4", projection_head="cifar"), data)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the numbers."""
    options = common.parser(__doc__)
    for name in CASES:
        options.add_argument(f"--{name}", type=Path, help="folder of JPEGs")
    options.add_argument("--images", type=int, default=256)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args(arguments)
    device, threads = torch.device(chosen.device), torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker of a data loader
    count, repeats = (8, 2) if chosen.quick else (chosen.images, chosen.repeats)
    times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (_, size, build) in CASES.items():
            own = count if name != "large" else max(8, count // 4)
            put_files(Path(scratch, name), own, size, getattr(chosen, name))
            groups = {name: sides(Path(scratch, name), build(), own, device)}
            if name == "small":
                groups["small, in memory"] = our_sides(Path(scratch, name), build(), own, device, cache=True)
            for group, timed in groups.items():
                for side in timed.values():  # files come from the disk's cache from now on
                    side()
                taken = common.interleave(timed, dict.fromkeys(timed, repeats), device)
                times[group] = {side: [own / s for s in values] for side, values in taken.items()}
        decoded = {}
        for name in CASES:
            timed = decoding(Path(scratch, name))
            decoded[name] = common.interleave(timed, dict.fromkeys(timed, repeats), device)
        fits: dict[str, Callable[[], object]] = {
            augment: partial(fit, Path(scratch, "small"), augment, count, device)
            for augment in ("worker", "device")
        }
        taken = common.interleave(fits, dict.fromkeys(fits, repeats), device)
        times["fit"] = {augment: [count / s for s in values] for augment, values in taken.items()}
    record = {"machine": common.machine(device), "pairs_per_second": times, "decoding_seconds": decoded}
    torch.set_num_threads(threads)
    made_up = [name for name in CASES if getattr(chosen, name) is None]
    text = _text(times, decoded, made_up)
    print(common.write(chosen.out, "data", device, record, [] if chosen.quick else _targets(times), text))


def _targets(times: dict[str, dict[str, list[float]]]) -> list[Target]:
    small, large = times["small, in memory"], times["large"]
    gain, _ = ratio(small["loader"], small["worker"])
    found = [Target("32 pixels, in memory: loader over worker", 3.0, gain, at_least=True)]
    if "lightly" in large:
        gain, _ = ratio(large["loader"], large["lightly"])
        found.append(Target("224 pixels: loader over lightly", 2.0, gain, at_least=True))
    return found


Times = dict[str, dict[str, list[float]]]


def _text(times: Times, decoded: Times, made_up: Sequence[str]) -> str:
    names = list(times["small"])
    rows = []
    for name in (name for name in times if name != "fit"):
        size, found = CASES[name.partition(",")[0]][0], times[name]
        rates = [number(float(np.median(found[side]))) if side in found else "-" for side in names]
        gain, spread = ratio(found["loader"], found["worker"])
        rows.append([f"{name}, {size} pixels", *rates, f"{number(gain)} ({spread})"])
    pairs = common.table(["files, views", *names, "loader over worker"], rows)
    gain, spread = ratio(times["fit"]["device"], times["fit"]["worker"])
    rates = [number(float(np.median(times["fit"][side]))) for side in ("worker", "device")]
    whole = common.table(["`fit` of conv4, 32 pixels", *("worker", "device"), "device over worker"],
                         [["images per second, one core", *rates, f"{number(gain)} ({spread})"]])  # fmt: skip
    rows = [[name, f"{number(gain)} ({spread})"] for name, (gain, spread) in (
        (name, ratio(found["decode_jpeg"], found["Pillow"])) for name, found in decoded.items()
    )]  # fmt: skip
    decoders = common.table(["files", "time of torchvision's decode_jpeg over Pillow's"], rows)
    note = f" Files made up: {', '.join(made_up)}." if made_up else ""
    return f"Pairs of views per second, one thread; medians.{note}\n\n{pairs}\n{whole}\n{decoders}"


if __name__ == "__main__":
    main()
