"""What a module's constructor was given, in plain data: checkpoints rebuild from it, the ledger shows it."""

from __future__ import annotations

import inspect
import warnings
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule

from mmcl_lightning._lightning import replace_hyperparameters
from mmcl_lightning._specs import to_spec

__all__ = ["record_options"]


def record_options(module: LightningModule) -> None:
    """Store the arguments of a module's constructor as its ``hparams``.

    Call it in the constructor, before the arguments change. Of a subclass it stores what the subclass was
    given. Live objects are described where they can be; see :func:`~mmcl_lightning._specs.to_spec`. Under
    LightningCLI the options are those of the configuration, which says how to build every part.

    Args:
        module: A module whose constructor is running.
    """
    frame = _constructor_frame(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is an instance of `nn.Module`.*")
        module.save_hyperparameters(frame=frame)  # of LightningCLI, if it builds this module
    if "_instantiator" in module.hparams:
        return
    options = {name: to_spec(value) for name, value in _arguments(frame).items()}
    replace_hyperparameters(module, options)  # loggers are to write no copies of live modules either


def _constructor_frame(module: object) -> FrameType:
    """Return the frame in which the constructor of the module's own class, or subclass, runs."""
    frame, outermost = inspect.currentframe(), None
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is module:
            outermost = frame
        frame = frame.f_back
    assert outermost is not None
    return outermost


def _arguments(frame: FrameType) -> dict[str, Any]:
    """Return what a constructor was given, by name.

    Of a subclass these are its own arguments, and those that it passes on by ``**kwargs``, not what it makes
    of them: so ``type(module)(**arguments)`` builds the module again.
    """
    names, _, keywords, values = inspect.getargvalues(frame)
    given = {name: values[name] for name in names if name != "self"}
    return given | (values[keywords] if keywords else {})
