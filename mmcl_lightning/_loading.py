"""``load_from_checkpoint`` by which no checkpoint says what is imported or called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mmcl_lightning._checkpoints import check_file
from mmcl_lightning._lightning import load_plainly, read_options, read_saved
from mmcl_lightning._specs import imported_class
from mmcl_lightning._structure import check_parts
from mmcl_lightning.errors import ConfigError, MMCLError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PlainlyLoaded"]

#: Where Lightning notes how its command line built a module.
_NOTES = ("_class_path", "_instantiator")


class PlainlyLoaded:
    """A module or data module of Lightning that its checkpoint rebuilds without running a stranger's code.

    Of a checkpoint from the command line, Lightning hands the options to the parser of the command line,
    which imports and calls whatever they name. Here the constructor gets them as they lie in the file, and
    builds by :func:`~mmcl_lightning._specs.from_spec` what it knows how to.
    """

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = True,
        **kwargs: Any,
    ) -> Self:
        """Rebuild from a checkpoint.

        No code of it is run, wherever it lies, unless ``weights_only=False`` lets it hold any objects.

        Args:
            checkpoint_path: A path, URL or open file.
            map_location: As of ``torch.load``.
            hparams_file: Options in place of those of the checkpoint, .yaml or .csv.
            strict: Whether all weights have to be there; None for what the module says.
            weights_only: Whether to admit tensors and plain data alone.
            **kwargs: Options in place of single ones of the checkpoint.

        Raises:
            ConfigError: If the file is damaged, no checkpoint, or names what is not known to be harmless.
        """
        if isinstance(checkpoint_path, str | Path) and Path(checkpoint_path).is_file():
            check_file(checkpoint_path, "a checkpoint")
        try:
            saved = check_parts(read_saved(checkpoint_path, map_location, weights_only), checkpoint_path)
        except (MMCLError, OSError):
            raise
        except Exception as error:  # a damaged pickle may be taken for anything
            if weights_only is False:  # and one that may hold anything may raise it on purpose
                raise
            raise ConfigError(
                f"{checkpoint_path} is damaged, or holds more than tensors and plain data, which can run "
                "code: if you trust it, give weights_only=False"
            ) from error
        key: str = cls.CHECKPOINT_HYPER_PARAMS_KEY  # type: ignore[attr-defined]
        options = read_options(hparams_file) if hparams_file is not None else saved.get(key) or {}
        named = options.get("_class_path")
        kind = cls if named is None else imported_class(named, cls)
        saved[key] = {name: value for name, value in options.items() if name not in _NOTES} | kwargs
        try:
            loaded: Any = load_plainly(kind, saved, strict, kwargs)
        except MMCLError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # an option of another type
            raise ConfigError(
                f"{checkpoint_path}: {kind.__name__} cannot be built with the options of the checkpoint and "
                f"those that were given ({type(error).__name__}: {error})"
            ) from error
        if isinstance(loaded, torch.nn.Module):
            devices = [value.device for value in saved["state_dict"].values() if torch.is_tensor(value)]
            loaded = loaded.to(devices[0]) if devices else loaded
        result: Self = loaded
        return result
