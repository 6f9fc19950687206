"""Files of representations: a row per image, as a NumPy archive or as Parquet."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmcl_lightning._files import whole_file
from mmcl_lightning.errors import ConfigError, DataError

__all__ = ["check_format", "check_text", "read_table", "write_table"]


def check_format(path: Path) -> None:
    """Raise :class:`ConfigError` unless a file of this name can be written and read."""
    if path.suffix.lower() not in (".npz", ".parquet"):
        raise ConfigError(f"representations are a file that ends in .npz or .parquet, got {path}")
    if path.suffix.lower() == ".parquet":
        _parquet()


def check_text(column: str, values: Iterable[Any]) -> None:
    """Raise :class:`DataError` where Parquet cannot hold a text, as a file name of other bytes than UTF-8.

    Args:
        column: Name of the column.
        values: Its values; those that are no texts are passed over.
    """
    for text in values:
        if isinstance(text, str) and not _is_unicode(text):
            raise DataError(
                f"the {column} {str(text)!r} is not in UTF-8, and Parquet has no other text: rename the file "
                "or folder, or write an .npz file"
            )


def write_table(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    """Write arrays of N rows each; those of Parquet with two dimensions become lists of one size.

    Args:
        path: File to write.
        columns: Arrays ``(N,)`` or ``(N, F)`` by name; a NumPy archive takes any shape.

    Raises:
        DataError: If an array has more dimensions than Parquet's tables have, or a text is not UTF-8.
    """
    if path.suffix.lower() == ".npz":
        with whole_file(path) as file:  # of a name, savez would change the ending .NPZ
            np.savez(file, **columns)  # type: ignore[arg-type]
        return
    arrow, parquet = _parquet()
    found = {}
    for name, values in columns.items():
        if values.ndim > 2:
            raise DataError(
                f"{name} has the shape {values.shape}, and Parquet takes rows: write an .npz file"
            )
        check_text(name, values)
        flat = arrow.array(values.ravel())
        found[name] = (
            arrow.FixedSizeListArray.from_arrays(flat, values.shape[1]) if values.ndim == 2 else flat
        )
    with whole_file(path) as file:
        parquet.write_table(arrow.table(found), file)


def read_table(path: Path) -> dict[str, NDArray[Any]]:
    """Read what :func:`write_table` wrote.

    Args:
        path: The file.

    Raises:
        ConfigError: If the file is missing, or its name ends otherwise.
        DataError: If it is damaged, or no such table.
    """
    check_format(path)
    if not path.is_file():
        raise ConfigError(f"there is no file {path}: give one that predict or embed wrote")
    try:
        if path.suffix.lower() == ".npz":
            archive = np.load(path)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array of NumPy, .npy")
            with archive:
                return dict(archive)
        return _read_parquet(path)
    except (
        ValueError,
        OSError,
        EOFError,
        MemoryError,  # a head that tells of more than there is
        RecursionError,
        SyntaxError,
        tokenize.TokenError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:  # Arrow's own are ValueErrors
        raise DataError(f"{path} cannot be read as representations ({error})") from error


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    arrow, parquet = _parquet()
    table, found = parquet.read_table(path), {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        lists = arrow.types.is_fixed_size_list(column.type)
        flat = column.flatten() if lists else column  # which leaves out rows that are null
        if nulls := column.null_count or flat.null_count:
            raise ValueError(f"{nulls} values in {name} are null")
        values = flat.to_numpy(zero_copy_only=False)
        found[name] = values.reshape(len(column), column.type.list_size) if lists else values
    return found


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            'a .parquet file needs pyarrow: pip install "mmcl-lightning[parquet]", or choose .npz'
        ) from error
    return pyarrow, pyarrow.parquet
