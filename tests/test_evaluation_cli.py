"""From pretraining to its number on the command line: evaluate, resume, test, export."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_cli import QUICK, complaint
from test_recipes import SMALL_EVALUATION

from mmcl_lightning.cli import main
from mmcl_lightning.ledger import Record
from mmcl_lightning.modules import LinearEvaluation

#: What the checkpoint tells is left to it.
EVALUATE = [option for option in SMALL_EVALUATION if not option.startswith("--model")]
LINEAR = ["fit", "--config=cifar10_linear", *EVALUATE, "--trainer.check_val_every_n_epoch=1"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pretrained(folder: Path) -> str:
    main([*QUICK, "--trainer.max_epochs=1"])
    return str(next(folder.rglob("last.ckpt")).relative_to(folder))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_evaluate_resume_validate_and_test(
    pretrained: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*LINEAR, f"--model.checkpoint={pretrained}", "--trainer.max_epochs=2"])
    said = capsys.readouterr()
    lines = [
        line for line in said.out.splitlines() if line.startswith(("linear", "best", "protocol", "k-NN"))
    ]
    assert lines[0].startswith("k-NN top-1: ")
    assert lines[1].endswith(" at the end of epoch 2: the result")
    assert lines[2].startswith("best:         ")
    assert lines[3] == (
        "protocol:     mmcl_small: Adam lr=0.001 wd=1e-06 constant, batch 8, 2 epochs, frozen backbone, "
        f"weights {pretrained}, images of 16 x 16 pixels by EvalTransform(resize=None, crop=None), in [0, 1]"
    )
    result = float(lines[1].split()[2])
    run = folder / "runs" / "cifar10_linear" / "version_0" / "checkpoints" / "last.ckpt"
    saved = torch.load(run, weights_only=True)
    assert saved["hyper_parameters"]["checkpoint"] == pretrained
    assert saved["hyper_parameters"]["backbone"] == "conv4"
    backbone = torch.load(pretrained, weights_only=True)["state_dict"]
    assert all(
        torch.equal(value, backbone[key]) for key, value in saved["state_dict"].items() if "backbone" in key
    )

    record = Record.read(run.parents[1] / "ledger.json")
    assert record.protocols["linear/top1"] == lines[3].split(maxsplit=1)[1]
    assert record.metrics["linear/top1"].last == pytest.approx(result, abs=1e-4)
    assert record.pretraining["method"] == "MMCL log, Inverse"

    (folder / pretrained).parents[1].joinpath("ledger.json").write_text("damaged")
    main([*LINEAR, f"--model.checkpoint={pretrained}", "--trainer.max_epochs=1"])
    assert Record.read(run.parents[2] / "version_1" / "ledger.json").pretraining is None, (
        "and no work is lost"
    )
    shutil.rmtree(run.parents[2] / "version_1")
    capsys.readouterr()

    # What follows names no checkpoint of the pretraining: the evaluation's own one has all of it.
    Path(pretrained).unlink()
    for command in ("validate", "test"):
        main([command, *LINEAR[1:], "--ckpt_path=last"])
        said = capsys.readouterr()
        assert "which is used" not in said.err
        assert "what the checkpoint holds" not in said.err
        assert "random" not in said.err
        row = next(line for line in said.out.splitlines() if "linear/top1" in line)
        assert float(row.split("│")[2]) == pytest.approx(result, abs=1e-4)
    main([*LINEAR, "--ckpt_path=last", "--trainer.max_epochs=3"])
    said = capsys.readouterr()
    assert "Trained 3 epochs, 6 steps." in said.out
    assert "which is used" not in said.err
    assert "what the checkpoint holds" not in said.err
    assert f"weights {pretrained}" in said.out
    assert len(LinearEvaluation.load_from_checkpoint(run).curve) == 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_knn_of_any_file_without_a_run(
    pretrained: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["validate", *QUICK[1:], f"--ckpt_path={pretrained}"])
    row = next(line for line in capsys.readouterr().out.splitlines() if "knn/top1" in line)
    main(["export", "--checkpoint", pretrained, "--out", "b.pt"])
    assert capsys.readouterr().out.startswith(
        "Wrote b.pt: 24 tensors of conv4; read it with "
        "mmcl_lightning.models.build_backbone('conv4').load_state_dict(torch.load('b.pt'))"
    )
    knn = ["--readouts.knn.k=20", "--readouts.knn.temperature=0.07"]
    main(["validate", *LINEAR[1:], "--model.checkpoint=b.pt", "--model.backbone=conv4", *knn])
    said = capsys.readouterr()
    assert "no --ckpt_path, so the classifier has random weights" in said.err
    assert row.split("│")[2] in next(line for line in said.out.splitlines() if "knn/top1" in line)


def test_what_an_evaluation_cannot_do_without(
    pretrained: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert "needs weights: set --model.checkpoint to the file" in complaint(LINEAR, capsys, 1)
    args = [*LINEAR, f"--model.checkpoint={pretrained}"]
    assert "set task to 'classify'" in complaint([*args, "--data.task=pretrain"], capsys, 1)
    said = complaint([*args, "--model.backbone=resnet18"], capsys, 1)
    assert "does not fit the backbone: 0 of its 120 weights match" in said
    assert said.endswith("It was trained with backbone 'conv4', cifar_stem=False")
    assert "there is no checkpoint x.ckpt" in complaint([*LINEAR, "--model.checkpoint=x.ckpt"], capsys, 1)
    assert "there is no checkpoint x.ckpt" in complaint(["export", "--checkpoint=x.ckpt"], capsys, 1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fine_tuning_validates_its_last_step(pretrained: str, capsys: pytest.CaptureFixture[str]) -> None:
    steps = ["--trainer.max_steps=4", "--trainer.val_check_interval=2"]
    main(["fit", "--config=stl10_finetune", *EVALUATE, *steps, f"--model.checkpoint={pretrained}"])
    lines = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(("finetune", "protocol"))
    ]
    assert lines[0].endswith("at the end of epoch 2: the result")
    assert "many_shot: SGD lr=0.01 wd=0 cosine, batch 8, 4 steps, all weights trained" in lines[1]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_quick_judge_on_a_folder(
    pretrained: str, folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for name, shade in (("dark", 60), ("light", 180)):
            (folder / "photos" / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(shade - 40, shade + 40, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "photos" / split / name / f"{index}.png")
    options = [
        "--config=folder_logistic",
        "--data.root=photos",
        "--data.num_workers=0",
        "--data.image_size=16",
    ]
    small = [*options, "--trainer.accelerator=cpu"]
    capsys.readouterr()
    with caplog.at_level("INFO"):
        main(["fit", *small, f"--model.checkpoint={pretrained}"])
    said = capsys.readouterr()
    assert "Trained" not in said.out  # its fit takes no steps
    assert "\nnext: mmcl report " in said.out
    assert (
        "logistic top-1: 1.0000 on clean held-out images: the result; mean over the classes 1.0000"
        in said.out
    )
    assert "runs/folder_logistic/version_0/checkpoints/last.ckpt" in said.out
    assert "no optimizer" not in said.err
    assert "logistic regression 13 of 13: C=10, " in caplog.text
    main(["test", *small, "--ckpt_path=last"])
    assert "logistic/mean_per_class" in capsys.readouterr().out
    record = Record.read(folder / "runs" / "folder_logistic" / "version_0" / "ledger.json")
    assert (record.status, record.steps, record.data["folder"]) == ("finished", 0, "photos")
    assert record.protocols["logistic/top1"].startswith("converged: logistic regression on standardised h, ")
    main(["report", "runs/folder_logistic", "--out", "r.md"])
    text = (folder / "r.md").read_text()
    assert "## Image folder photos, 24 training images\n" in text
    assert "| logistic regression of MMCL log, Inverse | 1 | 1.000 |" in text
    assert "chosen" not in text, "which is of one run, and would be another column in the next one"
