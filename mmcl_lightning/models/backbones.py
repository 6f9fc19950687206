"""Backbones: modules that map images ``(B, C, H, W)`` to representations ``(B, F)``."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torchvision
from torch import Tensor, nn

from mmcl_lightning._options import check_flags, check_whole
from mmcl_lightning.errors import ConfigError, ShapeError
from mmcl_lightning.models.graphs import GIN

__all__ = ["Conv4", "build_backbone", "feature_dim", "input_channels"]

_TIMM_PREFIX = "timm:"
_GIN_PREFIX = "gin:"
_PROBE_SIZES = (32, 224)
_CONV4_PIXELS = 16


class Conv4(nn.Module):
    """Four blocks of 3x3 convolution, 2x2 max-pooling, batch norm and ReLU, then the global average.

    Pooling comes before the norm, on a quarter of the values, and the maps lie channels-last: together
    that nearly halves a training step on a CPU.

    Made for 32x32 images on a CPU: tests, smoke runs and teaching. It reproduces no published number.

    Args:
        in_channels: Channels of the images.

    Shape:
        Input ``(B, in_channels, H, W)`` with H, W >= 16; output ``(B, 256)``.
    """

    widths = (32, 64, 128, 256)

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in self.widths:
            conv = nn.Conv2d(in_channels, width, kernel_size=3, padding=1, bias=False)
            _init_conv(conv)
            layers += [conv, nn.MaxPool2d(2), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            in_channels = width
        self.blocks = nn.Sequential(*layers).to(memory_format=torch.channels_last)
        self.num_features = self.widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(B, C, H, W)`` to representations ``(B, 256)``.

        Raises:
            ShapeError: If an image has fewer than 16 pixels along a side.
        """
        if x.ndim != 4:
            raise ShapeError(f"conv4 takes images (B, C, H, W), got {tuple(x.shape)}: for clips, set s3d")
        if min(x.shape[-2:]) < _CONV4_PIXELS:
            raise ShapeError(
                f"conv4 takes images of {_CONV4_PIXELS} pixels or more along each side, got {x.shape[-2]} x "
                f"{x.shape[-1]}: set data.image_size to {_CONV4_PIXELS} or more"
            )
        maps: Tensor = self.blocks(x.contiguous(memory_format=torch.channels_last))
        return maps.mean(dim=(2, 3))


def build_backbone(
    name: str | Mapping[str, Any],
    *,
    cifar_stem: bool = False,
    pretrained: bool = False,
    in_channels: int = 3,
    **options: Any,
) -> nn.Module:
    """Build a backbone without its classifier, by name.

    Weights start as the library that defines the network starts them. The published code of MMCL meant
    to reset them differently, but its reset ran before the network was attached, so it used these too.

    Args:
        name: A torchvision ResNet (``"resnet50"``, ``"wide_resnet50_2"``, ...), ``"timm:NAME"`` for any
            network of timm, or ``"conv4"`` (see :class:`Conv4`). For clips ``"s3d"`` (see
            :class:`~mmcl_lightning.models.video.S3D`); for graphs ``"gin:7"`` with the number of features of
            a node (see :class:`~mmcl_lightning.models.GIN`). Or a mapping of the name and the other
            arguments, as a configuration has it: ``{"name": "resnet18", "in_channels": 4}``.
        cifar_stem: For images of 32 to 64 pixels: conv1 becomes 3x3, stride 1, padding 1, and the
            max-pool is removed, as SimCLR (Chen et al. 2020, appendix B.9) does for CIFAR-10.
            torchvision ResNets only.
        pretrained: Start from the library's default ImageNet weights (a download) instead of a random
            start. Not for ``"conv4"`` and ``"s3d"``, and not with another stem.
        in_channels: Channels of the images.
        **options: Of a timm network, such as ``img_size=96`` or ``dynamic_img_size=True``; of a GIN,
            ``hidden`` and ``layers``.

    Returns:
        A module whose forward maps ``(B, in_channels, H, W)`` to ``(B, F)``, F = ``feature_dim(module)``.
        torchvision ResNets keep torchvision's key names and have ``fc = Identity``.

    Raises:
        ConfigError: If the name is unknown, or the options do not fit the network.
    """
    if isinstance(name, Mapping) and "name" in name:
        chosen = {"cifar_stem": cifar_stem, "pretrained": pretrained, "in_channels": in_channels}
        if odd := [key for key in name if not isinstance(key, str)]:
            raise ConfigError(f"options of a backbone have names, such as in_channels, got {odd[0]!r}")
        return build_backbone(**{**chosen, **options, **name})
    if not isinstance(name, str):
        raise ConfigError(
            "backbone must be a name, such as 'resnet50', a module, or a name with options, such as "
            f"{{name: resnet50, in_channels: 4}}, got {name!r}"
        )
    check_whole(1, in_channels=in_channels)
    check_flags(pretrained=pretrained, cifar_stem=cifar_stem)
    if options and not name.startswith((_TIMM_PREFIX, _GIN_PREFIX)):
        raise ConfigError(
            f"backbone {name!r} has no option {next(iter(options))!r}: there are cifar_stem, in_channels and "
            "pretrained; networks of timm have more"
        )
    resnets = _resnet_names()
    if name in resnets:
        return _torchvision_resnet(name, cifar_stem, pretrained, in_channels)
    if cifar_stem:
        raise ConfigError(
            f"cifar_stem=True works with torchvision ResNets, e.g. 'resnet18'; {name!r} has no such stem. "
            f"Leave it False ('conv4' is built for 32x32 images as it is); with a recipe that sets it: "
            "--model.cifar_stem false."
        )
    if name in ("conv4", "s3d") or name.startswith(_GIN_PREFIX):
        if pretrained:
            raise ConfigError(f"pretrained=True: there are no published weights for {name!r}.")
        if name == "s3d":
            return _s3d(in_channels)
        return Conv4(in_channels) if name == "conv4" else _gin(name, options)
    if name.startswith(_TIMM_PREFIX):
        return _timm_model(name.removeprefix(_TIMM_PREFIX), pretrained, in_channels, options)
    raise _unknown_name(name, resnets)


def feature_dim(module: nn.Module) -> int:
    """Return F, the width of the representation ``(B, F)`` that a backbone gives.

    Read from the attribute ``head_hidden_size`` (timm's name for what a network without classifier gives)
    or ``num_features``. A module with neither is run once on two blank images of 32, then 224 pixels, in
    evaluation mode: its weights, buffers, modes and the random state stay as they were.

    Args:
        module: A backbone from :func:`build_backbone`, or any module from images to ``(B, F)``.

    Raises:
        ConfigError: If the width cannot be found; the message says how to give it.
    """
    for attribute in ("head_hidden_size", "num_features"):
        width = getattr(module, attribute, None)
        if isinstance(width, int) and width > 0:
            return width
    tried = []
    with _side_effects_undone(module):
        for size in _PROBE_SIZES:
            try:
                h = module(_blank_images(module, size))
            except Exception as error:  # a user's forward may raise anything; all of it goes in the message
                tried.append(f"{size} pixels: {type(error).__name__}: {error}")
                continue
            if isinstance(h, Tensor) and h.ndim == 2:
                return h.shape[1]
            got = f"shape {tuple(h.shape)}" if isinstance(h, Tensor) else type(h).__name__
            tried.append(f"{size} pixels: gave {got} instead of a tensor of shape (2, F)")
    raise ConfigError(
        f"Cannot tell the representation's width F of {type(module).__name__}: let the module have an "
        f"attribute num_features. Tried a batch (2, {input_channels(module)}, S, S): " + "; ".join(tried)
    )


def input_channels(module: nn.Module) -> int:
    """Return the channels that the first convolution takes; 3 where there is none.

    Args:
        module: A network of images.
    """
    first = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    return 3 if first is None else first.in_channels


def _resnet_names() -> list[str]:
    # list_models(module=...) filters by package, not by file, so it cannot tell the ResNets.
    names = torchvision.models.list_models(module=torchvision.models)
    home = torchvision.models.resnet.__name__
    return [name for name in names if torchvision.models.get_model_builder(name).__module__ == home]


def _torchvision_resnet(name: str, cifar_stem: bool, pretrained: bool, in_channels: int) -> nn.Module:
    if pretrained and (cifar_stem or in_channels != 3):
        raise ConfigError(
            "pretrained=True needs the stem that the weights were trained with: "
            f"cifar_stem=False and in_channels=3, got {cifar_stem} and {in_channels}."
        )
    weights = "DEFAULT" if pretrained else None
    try:
        model: Any = torchvision.models.get_model(name, weights=weights)
    except OSError as error:  # of urllib, without a network
        raise ConfigError(
            f"the published weights of {name!r} cannot be fetched ({error}); where they can, they are kept "
            f"in {torch.hub.get_dir()}, which can be copied"
        ) from error
    width = model.conv1.out_channels
    model.num_features = model.fc.in_features
    model.fc = nn.Identity()
    if cifar_stem:
        model.conv1 = nn.Conv2d(in_channels, width, 3, stride=1, padding=1, bias=False)
        model.maxpool = nn.Identity()
        _init_conv(model.conv1)
    elif in_channels != 3:
        model.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        _init_conv(model.conv1)
    backbone: nn.Module = model
    return backbone


def _s3d(in_channels: int) -> nn.Module:
    from mmcl_lightning.models.video import S3D

    if in_channels != 3:
        raise ConfigError(f"s3d takes clips of 3 channels, got in_channels={in_channels}")
    return S3D()


def _timm_model(name: str, pretrained: bool, in_channels: int, options: dict[str, Any]) -> nn.Module:
    import timm  # seconds to import, and only these names need it

    if not timm.is_model(name):
        names = [f"{_TIMM_PREFIX}{known}" for known in timm.list_models()]
        raise _unknown_name(f"{_TIMM_PREFIX}{name}", names)
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=pretrained, num_classes=0, in_chans=in_channels, **options
        )
    except (TypeError, ValueError, AssertionError) as error:  # timm checks options within the networks
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise ConfigError(f"timm does not build {name!r} with {given or 'these options'}: {error}") from error
    return model


def _gin(name: str, options: dict[str, Any]) -> nn.Module:
    number = name.removeprefix(_GIN_PREFIX)
    if not number.isdecimal():
        raise ConfigError(f"a GIN is named by the features of a node, such as 'gin:7', got {name!r}")
    if strange := [option for option in options if option not in ("hidden", "layers")]:
        raise ConfigError(f"backbone {name!r} has the options hidden and layers, and no {strange[0]!r}")
    return GIN(int(number), **options)


def _init_conv(conv: nn.Conv2d) -> None:
    # As torchvision starts every convolution of a ResNet; a replaced stem must not differ from the rest.
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")


def _unknown_name(name: str, known: Sequence[str]) -> ConfigError:
    close = difflib.get_close_matches(name, [*known, "conv4", "s3d"], n=4)
    hint = f" Did you mean {', '.join(map(repr, close))}?" if close else ""
    return ConfigError(
        f"Unknown backbone {name!r}.{hint} A name is a torchvision ResNet ('resnet18', 'resnet50', ...), "
        "'timm:NAME' ('timm:vit_small_patch16_224', ...) or 'conv4'; for clips, 's3d'; for graphs, 'gin:7'; "
        "any nn.Module can be passed instead."
    )


def _blank_images(module: nn.Module, size: int) -> Tensor:
    like = next(module.parameters(), torch.empty(0))
    return torch.zeros(2, input_channels(module), size, size, device=like.device, dtype=like.dtype)


@contextlib.contextmanager
def _side_effects_undone(module: nn.Module) -> Iterator[None]:
    modes = {m: m.training for m in module.modules()}
    buffers = {b: b.detach().clone() for b in module.buffers()}
    device = next(module.parameters(), torch.empty(0)).device
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            module.eval()
            yield
    finally:
        # Flag by flag: a partly frozen backbone has some layers in evaluation mode on purpose.
        for submodule, training in modes.items():
            submodule.training = training
        with torch.no_grad():
            for buffer, before in buffers.items():
                buffer.copy_(before)
