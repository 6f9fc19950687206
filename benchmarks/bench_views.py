"""Views per second of one CPU core: image by image, a batch at once as tensors, and by torchvision.

    python benchmarks/bench_views.py [--images 256] [--repeats 7]

The pictures are random pixels, in memory and of one size, so that decoding does not count; the draws of
SimCLR's augmentation count on all sides. torchvision's side is a pipeline of its own parts with the same
distributions, on the same pictures. Prints a table and writes ``views_cpu.json`` and ``views.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import common  # first: it puts a clone's root on the path
import torch
from common import number, ratio
from PIL import Image
from torch import Tensor
from torchvision import transforms as tv

from mmcl_lightning.transforms import SimCLRTransform

CASES = {
    "cifar, 32 pixels": (32, SimCLRTransform.cifar),
    "imagenet(32), from 64 pixels": (64, partial(SimCLRTransform.imagenet, 32)),
    "imagenet(96), from 96 pixels": (96, partial(SimCLRTransform.imagenet, 96)),
}


def one_by_one(transform: SimCLRTransform, images: Sequence[Image.Image]) -> Tensor:
    """One view of every image, each by itself."""
    return torch.stack([transform.apply(image, transform.draw(*image.size)) for image in images])


def at_once(transform: SimCLRTransform, pixels: Tensor) -> Tensor:
    """One view of every image, all together."""
    count, _, height, width = pixels.shape
    return transform.apply_batch(pixels, [transform.draw(width, height) for _ in range(count)])


def by_torchvision(transform: SimCLRTransform, images: Sequence[Image.Image]) -> Tensor:
    """One view of every image by torchvision's own parts, distributed as ours are."""
    cubic = transform.interpolation == "bicubic"
    kernel = 3 if not cubic else 2 * round(11 * transform.size / 224) + 1
    pipeline = tv.Compose(
        [
            tv.RandomResizedCrop(
                transform.size,
                transform.crop_scale,
                transform.crop_ratio,
                tv.InterpolationMode.BICUBIC if cubic else tv.InterpolationMode.BILINEAR,
            ),
            tv.RandomHorizontalFlip(transform.hflip_prob),
            tv.RandomApply([tv.ColorJitter(*transform.jitter)], transform.cj_prob),
            tv.RandomGrayscale(transform.gray_prob),
            tv.ToTensor(),
            tv.RandomApply([tv.GaussianBlur(kernel, transform.blur_sigma)], transform.blur_prob),
        ]
    )
    return torch.stack([pipeline(image) for image in images])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, then write the table and the numbers."""
    options = common.parser(__doc__)
    options.add_argument("--images", type=int, default=256)
    options.add_argument("--repeats", type=int, default=7)
    chosen = options.parse_args(arguments)
    device = torch.device("cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker of a data loader
    count, repeats = (8, 2) if chosen.quick else (chosen.images, chosen.repeats)
    rows, times = [], {}
    for name, (size, build) in CASES.items():
        transform = build()
        torch.manual_seed(0)
        pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
        images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]
        sides = {
            "image": partial(one_by_one, transform, images),
            "batch": partial(at_once, transform, pixels),
            "torchvision": partial(by_torchvision, transform, images),
        }
        times[name] = taken = common.interleave(sides, dict.fromkeys(sides, repeats), device)
        gain, spread = ratio(taken["image"], taken["batch"])
        rate = {side: number(count / sorted(values)[len(values) // 2]) for side, values in taken.items()}
        over, width = ratio(taken["torchvision"], taken["image"])
        gains = [f"{number(gain)} ({spread})", f"{number(over)} ({width})"]
        rows.append([name, rate["image"], rate["batch"], rate["torchvision"], *gains])
    machine = common.machine(device)
    torch.set_num_threads(threads)
    head = [
        "augmentation", "image by image, views/s", "batch at once, views/s", "torchvision, views/s",
        "batch over image", "image over torchvision",
    ]  # fmt: skip
    record = {"machine": machine, "images": count, "seconds": times}
    text = f"{count} images at once, one thread; medians.\n\n{common.table(head, rows)}"
    print(common.write(chosen.out, "views", device, record, [], text))


if __name__ == "__main__":
    main()
