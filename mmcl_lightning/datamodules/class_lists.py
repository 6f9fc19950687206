"""Lists of classes: those folders of a data set that are read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mmcl_lightning._text import plain
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["read_class_list"]

_SHIPPED = Path(__file__).parent / "lists"


def read_class_list(given: str) -> list[str]:
    """Return the names of a list.

    Args:
        given: A file with a name on each line, lines from ``#`` on being remarks; or the name of a shipped
            list, ``"imagenet100"``.

    Raises:
        ConfigError: If there is no such list.
        DataError: If it has no name, or one twice.
    """
    shipped = sorted(path.stem for path in _SHIPPED.glob("*.txt"))
    path = _SHIPPED / f"{given}.txt" if given in shipped else Path(given).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"class_list must be {' or '.join(shipped)}, or a file with the name of a class folder on each "
            f"line, and there is no file {given}"
        )
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"class_list: {path} cannot be read: {error}") from error
    names = [line for line in lines if line]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not names or twice:
        found = f"{plain(twice[0])} twice" if twice else "no name"
        raise DataError(f"class_list: {path} has {found}; give each class folder once")
    return names
