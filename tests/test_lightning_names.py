"""Lightning's private names: all in one file, and all still there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from runs import trainer

from mmcl_lightning import _lightning
from mmcl_lightning._lightning import PRIVATE_NAMES

PACKAGE = Path(_lightning.__file__).parent


def test_the_installed_lightning_has_them_all(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
    from lightning.pytorch.cli import LightningCLI
    from lightning.pytorch.core import saving
    from lightning.pytorch.loops.loop import _Loop
    from lightning.pytorch.tuner.lr_finder import _LRCallback

    run: Trainer = trainer(tmp_path)
    live = {
        Trainer: run, ModelCheckpoint: ModelCheckpoint(), LightningCLI: LightningCLI, _Loop: _Loop,
        saving: saving, _LRCallback: _LRCallback(1), EarlyStopping: EarlyStopping("x"),
        type(run._checkpoint_connector): run._checkpoint_connector,
        type(run._signal_connector): run._signal_connector,
        type(run.fit_loop): run.fit_loop, type(run.fit_loop.epoch_loop): run.fit_loop.epoch_loop,
    }  # fmt: skip
    module = BoringModel()
    module.save_hyperparameters()
    for kind, names in PRIVATE_NAMES.items():
        thing = live.get(kind) or module
        missing = [name for name in names if not hasattr(thing, name)]
        assert not missing, (
            f"this release of Lightning has no {', '.join(missing)} of {kind.__name__} any more: "
            "find what replaces it, in mmcl_lightning/_lightning.py alone"
        )


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_no_other_file_reaches_into_lightning(path: Path) -> None:
    if path.name == "_lightning.py":
        return
    tree = ast.parse(path.read_text())
    imported = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning")
        for alias in node.names
    ]
    assert [name for name in imported if name.startswith("_")] == []
    listed = {name for names in PRIVATE_NAMES.values() for name in names if name.startswith("_")}
    # A class of ours that derives from one of Lightning's may use what its base has.
    reached = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in listed
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
        and not (isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "super")
    ]
    assert reached == []
    assert not [text for text in ast.walk(tree) if isinstance(text, ast.Constant) and text.value in listed]
