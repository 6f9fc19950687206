"""Plain descriptions of options, so that a checkpoint can rebuild a module that was built in Python.

A checkpoint is read with ``weights_only=True``, which admits numbers, strings and containers only. Losses,
kernels, solvers and optimizer factories are therefore stored as ``{"class_path": ..., "init_args": ...}``,
the form that a YAML configuration has too.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import sys
from typing import Any

from torch import nn

from mmcl_lightning._options import is_number, is_whole
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.kernels import Kernel
from mmcl_lightning.losses import ContrastiveLoss
from mmcl_lightning.losses.weights import NegativeWeights
from mmcl_lightning.svm import Solver
from mmcl_lightning.transforms import ImageTransform

__all__ = ["from_spec", "imported_class", "to_spec"]

#: What may stand inside of another description. Not any class: a checkpoint must not call what it likes.
_PARTS = (Kernel, NegativeWeights, Solver)
#: Packages of which a checkpoint may name a module that is not imported yet.
_TRUSTED = {"lightning", "mmcl_lightning", "timm", "torch", "torchvision"}


def to_spec(value: Any) -> Any:
    """Describe a value in plain data; a live module or function becomes a note that says what it was."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"class_path": _path(type(value)), "init_args": to_spec(_fields(value))}
    if isinstance(value, ContrastiveLoss | ImageTransform):
        return _kept_spec(value)
    if isinstance(value, functools.partial) and not value.args:
        return {"class_path": _path(value.func), "init_args": to_spec(value.keywords)}
    if isinstance(value, type):  # an optimizer class, called with its own defaults
        return {"class_path": _path(value), "init_args": {}}
    if isinstance(value, dict):
        return {key: to_spec(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_spec(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    # NumPy's scalars and paths are nothing that a checkpoint can hold.
    if is_whole(value):
        return int(value)
    if is_number(value):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return _note(value)


def from_spec(value: Any, base: type | tuple[type, ...], option: str) -> Any:
    """Rebuild what :func:`to_spec` described; anything else is returned as it is.

    Args:
        value: A description, or a live object.
        base: Class, or several to choose from, that the described class must derive from.
        option: Name of the option, for the message.

    Returns:
        For an optimizer a factory (``functools.partial``), else an instance.

    Raises:
        ConfigError: If the object was live when it was stored, or its class is not a ``base``.
    """
    if not isinstance(value, dict):
        return value
    if "live_object" in value:
        raise ConfigError(
            f"the checkpoint was made with a live object for {option} ({value['live_object']}), which it "
            f"cannot hold: pass it again, as in load_from_checkpoint(path, {option}=...)"
        )
    kinds = base if isinstance(base, tuple) else (base,)
    cls = _named_class(value, kinds, option)
    # A network may have networks as its parts.
    parts = (*_PARTS, nn.Module) if nn.Module in kinds else _PARTS
    arguments = {
        key: from_spec(part, parts, option) if _is_spec(part) else part
        for key, part in _arguments(value, option).items()
    }
    factory = functools.partial(cls, **arguments)
    try:
        return factory if option == "optimizer" else factory()
    except ConfigError:
        raise
    except Exception as error:  # its arguments are a file's
        raise ConfigError(f"{option}: {cls.__name__} cannot be built of {arguments} ({error})") from error


def _named_class(value: dict[str, Any], kinds: tuple[type, ...], option: str) -> type:
    """Return the class that a description names; a dataclass may be described by its arguments alone."""
    wanted = " or ".join(kind.__name__ for kind in kinds)
    if "class_path" not in value:
        if len(kinds) == 1 and dataclasses.is_dataclass(kinds[0]):
            return kinds[0]
        raise ConfigError(f"{option} must be a {wanted} or have a class_path, got {value}")
    cls = _find_class(str(value["class_path"]), option)
    if not (isinstance(cls, type) and issubclass(cls, kinds)):
        raise ConfigError(f"{option}: {value['class_path']} is no {wanted}")
    return cls


def _arguments(value: dict[str, Any], option: str) -> dict[str, Any]:
    """Return the arguments of a description, by name."""
    given = value.get("init_args", {}) if "class_path" in value else value
    more = value.get("dict_kwargs", {}) if "class_path" in value else {}  # of the command line, for **kwargs
    for part in (given, more):
        if not (isinstance(part, dict) and all(isinstance(key, str) for key in part)):
            raise ConfigError(f"{option}: expected arguments by name, got {part!r}")
    return {**given, **more}


def imported_class(path: Any, base: type) -> Any:
    """Return a class that is imported already, by its path.

    Args:
        path: Module and name.
        base: What it must derive from.

    Raises:
        ConfigError: If it is not there, or derives from something else.
    """
    module, _, name = str(path).rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(
            f"the checkpoint is of {path}, which is no {base.__name__} or not imported: load it by "
            f"{name or 'its own class'}.load_from_checkpoint, with {module or 'its module'} imported before"
        )
    return found


def _find_class(path: str, option: str) -> Any:
    """Return what a path of a class names; of modules that are not known to be harmless none is imported.

    A checkpoint may be a stranger's, and importing a module runs what is in it.

    Raises:
        ConfigError: If the module is neither imported already nor of a known package, or is not there.
    """
    module, _, name = path.rpartition(".")
    if "<locals>" in path:
        raise ConfigError(f"{option}: {path} cannot be imported: it was defined within a function")
    if module not in sys.modules and module.partition(".")[0] not in _TRUSTED:
        raise ConfigError(
            f"{option}: the checkpoint names {path}, of a module that is not imported: if you trust the "
            f"file, import {module or path} before, or give the {option} itself"
        )
    try:
        return getattr(importlib.import_module(module), name, None)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{option}: {path} cannot be imported ({error})") from error


def _is_spec(value: Any) -> bool:
    return isinstance(value, dict) and ("class_path" in value or "live_object" in value)


def _kept_spec(thing: ContrastiveLoss | ImageTransform) -> dict[str, Any]:
    try:
        options = thing.options()
    except ConfigError:  # one of the user that does not keep its arguments
        return _note(thing)
    return {"class_path": _path(type(thing)), "init_args": to_spec(options)}


def _note(value: Any) -> dict[str, Any]:
    kind = type(value) if isinstance(value, nn.Module) or not callable(value) else value
    return {"live_object": _path(kind)}


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}


def _path(thing: Any) -> str:
    return f"{thing.__module__}.{getattr(thing, '__qualname__', thing)}"
