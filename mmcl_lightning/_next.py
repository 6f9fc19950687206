"""The last line of every command: what one would do next."""

from __future__ import annotations

import shlex

from mmcl_lightning._files import short_path
from mmcl_lightning._text import plain, say

__all__ = ["NEXT", "say_next"]

#: By command, and by how it ended where that matters; names in braces are paths.
NEXT = {
    "check-data": "mmcl fit --config folder_mmcl_log --data.root {root}",
    "check-data, problems": "repair or remove them, or give fit --data.on_bad_image skip",
    "embed": "mmcl neighbours {file} --picture --root {root}",
    "export": "mmcl embed --checkpoint {file} --data.root FOLDER",
    "export, another library's": "load {file} as the line above says",
    "fit": "tensorboard --logdir {runs}",
    "fit, no TensorBoard": "mmcl report {runs} --out report.html",
    "flow": "mmcl fit --config ucf101_mmcl --data.root {root} --data.modality flow",
    "map": "mmcl neighbours {file} --picture --root FOLDER",
    "map, pca": "mmcl map {file} --method tsne",
    "map, projector": "tensorboard --logdir {folder}",
    "negatives": "look at {picture}",
    "neighbours": "mmcl neighbours {file} --picture --root FOLDER",
    "neighbours, picture": "look at {picture}",
    "predict": "mmcl map {file}",
    "recipes": "mmcl fit --config NAME",
    "report": "mmcl report {folder} --out report.html",
    "report, page": "open {page} in a browser",
    "shards": "mmcl fit --config folder_mmcl_log --config overlays/stream --data.root {folder}",
    "sweep": "mmcl report {folder} --out report.html",
    "sweep, unfinished": "the same command again: it goes on where this one ended",
    "test": "mmcl report {runs} --out report.html",
    "transfer": "the same command with --checkpoint random, the floor of these numbers",
    "transfer, unfinished": "the same command again: it goes on where this one ended",
    "validate": "mmcl predict with the same options, for the representations",
}


def say_next(ending: str, **paths: object) -> None:
    """Print what one would do next, in one line.

    Args:
        ending: A key of :data:`NEXT`.
        **paths: What stands in its braces, quoted for a shell.
    """
    quoted = {name: shlex.quote(plain(short_path(str(path)))) for name, path in paths.items()}
    say(f"next: {NEXT[ending].format(**quoted)}")
