"""What a picture of support vectors shows, as JSON and CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmcl_lightning._files import whole_text, write_csv
from mmcl_lightning.negatives.findings import Selection, SupportVectors
from mmcl_lightning.svm.negatives import at_bound, is_support

__all__ = ["write_files"]

_FIELDS = ("position", "path", "view", "target", "class", "alpha", "at_bound", "false_negative")


def write_files(
    found: SupportVectors, selection: Selection, path: Path, checkpoint: str | None
) -> list[Path]:
    """Write what was found beside the picture.

    Positions are those of the images in the held-out data set, counted from 0.

    Args:
        found: What was found.
        selection: Which candidates of it were drawn.
        path: The picture.
        checkpoint: Where the weights came from; None if they are random.

    Returns:
        The JSON file, with the shares and the drawn rows, and the CSV file, with every support vector.
    """
    loss = found.criterion
    summary = {
        "checkpoint": checkpoint,
        "kernel": repr(loss.kernel),
        "solver": repr(loss.solver),
        "C": loss.C if math.isfinite(loss.C) else None,
        "reg": loss.reg,
        "images": len(found.images),
        "views": len(found.images.views),
        "stats": {name: value if math.isfinite(value) else None for name, value in found.stats().items()},
        "queries": [_row(found, selection, query) for query in found.choose_queries(selection.queries)],
    }
    files = [path.with_suffix(".json"), path.with_suffix(".csv")]
    with whole_text(files[0]) as file:
        file.write(json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_csv(files[1], ("query", "query_path", "query_target", *_FIELDS), _support_vectors(found))
    return files


def _support_vectors(found: SupportVectors) -> Iterator[tuple[Any, ...]]:
    """Return a row for every support vector."""
    images = found.images
    for query in range(len(images)):
        own = (int(images.positions[query]), images.path(query), int(images.targets[query]))
        for candidate in is_support(found.alpha[query]).nonzero().squeeze(1).tolist():
            yield (*own, *_entry(found, query, candidate).values())


def _row(found: SupportVectors, selection: Selection, query: int) -> dict[str, Any]:
    """Describe one row of the picture."""
    groups = found.columns(query, selection)
    names = ("strongest", "nearest_others", "random_others")
    return {
        "position": int(found.images.positions[query]),
        "path": found.images.path(query),
        "target": int(found.images.targets[query]),
        "class": found.images.class_name(query),
        "support_vectors": int(is_support(found.alpha[query]).sum()),
        **{name: [_entry(found, query, j) for j in group] for name, group in zip(names, groups, strict=True)},
    }


def _entry(found: SupportVectors, query: int, candidate: int) -> dict[str, Any]:
    """Describe one negative of a query."""
    view, image = found.place(candidate)
    alpha = found.alpha[query, candidate]
    values = (
        int(found.images.positions[image]),
        found.images.path(image),
        view,
        int(found.images.targets[image]),
        found.images.class_name(image),
        float(alpha),
        bool(at_bound(alpha, found.problem.C)),
        found.is_false_negative(query, candidate),
    )
    return dict(zip(_FIELDS, values, strict=True))
