"""Graphs through everything that pictures go through."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchvision
from runs import Recorder, StopAfter, events, mmcl, moco, simclr, trainer, tu, write_tu
from torch import nn

from mmcl_lightning.callbacks import Readouts, RepresentationWriter, Throughput
from mmcl_lightning.cli import main
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.losses import NTXentLoss
from mmcl_lightning.models import build_backbone
from mmcl_lightning.readouts import KNN, Health, LinearProbe, LogisticRegression, SupportVectorGrid
from mmcl_lightning.svm import Exact, Inverse, ProjectedGradient
from mmcl_lightning.views import cut

GRAPHS: dict[str, Any] = {"backbone": "gin:7", "projection_head": "moco", "output_dim": 16}


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in module.state_dict().values()])


def test_every_readout_of_the_quickstart_logs_what_it_promises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    readouts = Readouts(
        knn=KNN(k=3), probe=LinearProbe(), health=Health(images=20, view_images=8),
        support_vectors=SupportVectorGrid(images=8, queries=2), logistic=LogisticRegression(),
    )  # fmt: skip
    run = trainer(tmp_path, readouts, Throughput(), max_epochs=1, log=True)
    with caplog.at_level("INFO"):
        run.fit(mmcl(**GRAPHS), tu(tmp_path))
    tags = set(events(tmp_path).Tags()["scalars"])
    assert tags >= {
        "knn/top1", "knn/best_top1", "probe/top1", "probe/loss", "logistic/top1", "health/rankme_h",
        "health/std_z", "health/alignment", "health/uniformity", "svm/sv_fraction", "train/loss",
        "time/images_per_second",
    }  # fmt: skip
    assert caplog.text.count("no pictures to look at") == 1


def test_throughput_counts_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tu(tmp_path, graphs=13)
    throughput, found = Throughput(), []
    monkeypatch.setattr(Throughput, "on_train_epoch_end", lambda self, *_: found.append(self._images))
    trainer(tmp_path, throughput, log_every_n_steps=100).fit(simclr(**GRAPHS), tu(tmp_path))
    assert found == [13]  # batches of 8 and 5


@pytest.mark.parametrize("solver", [Inverse(), ProjectedGradient(), Exact()])
def test_losses_train_on_graphs(solver: Any, tmp_path: Path) -> None:
    module, recorder = mmcl(solver=solver, **GRAPHS), Recorder()
    before = weights(module)
    trainer(tmp_path, recorder, max_epochs=2).fit(module, tu(tmp_path))
    assert len(recorder.loss) == 6
    assert np.isfinite(recorder.loss).all()
    assert not torch.equal(before, weights(module))


def gradients(chunk: int | None, data: Any, frozen: bool = True) -> torch.Tensor:
    module = simclr(chunk_size=chunk, **GRAPHS).double()
    if frozen:  # batch norm of a chunk is not that of the batch
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.eval()
    views, _ = next(iter(data.train_dataloader()))
    loss, _ = module.loss_of_views(views)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in module.parameters()])


@pytest.mark.parametrize("chunk", [1, 3, 8, 9])
def test_chunks_give_the_gradient_of_one_pass(chunk: int, tmp_path: Path) -> None:
    data = tu(tmp_path)
    data.setup()
    torch.testing.assert_close(gradients(chunk, data), gradients(None, data), rtol=0, atol=1e-12)


class Frozen(nn.Module):
    """A GIN whose batch norm stays as it is, so that processes with parts of a batch agree with one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = build_backbone("gin:7").double()
        self.num_features = 96

    def forward(self, graphs: Any) -> torch.Tensor:
        self.net.eval()
        return self.net(graphs)


def _share(rank: int, world: int, folder: str, root: str) -> None:
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    data = tu(Path(root))
    data.setup()
    views, _ = next(iter(data.train_dataloader()))
    mine = [cut(view, rank * 8 // world, (rank + 1) * 8 // world) for view in views]
    torch.manual_seed(0)
    net, head, loss = Frozen(), nn.Linear(96, 4).double(), NTXentLoss(0.2)
    loss(*(head(net(view)) for view in mine)).backward()
    found = torch.cat([p.grad.flatten() for part in (net, head) for p in part.parameters()])
    if world > 1:
        dist.all_reduce(found)
        dist.destroy_process_group()
    torch.save(found / world, f"{folder}/{world}_{rank}.pt")


def test_two_processes_with_unequal_graphs_equal_one(tmp_path: Path) -> None:
    write_tu(tmp_path)
    _share(0, 1, str(tmp_path), str(tmp_path))
    mp.start_processes(_share, (2, str(tmp_path), str(tmp_path)), nprocs=2, start_method="fork")
    one, two = (torch.load(tmp_path / f"{name}.pt") for name in ("1_0", "2_1"))
    assert one.abs().max() > 1e-3
    torch.testing.assert_close(two, one, rtol=0, atol=1e-10)


@pytest.mark.parametrize("steps", [3, 4])
def test_a_resumed_run_equals_the_uninterrupted_one(steps: int, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    whole = mmcl(**GRAPHS)
    trainer(tmp_path / "a", max_epochs=3).fit(whole, tu(tmp_path))
    saver = ModelCheckpoint(tmp_path / "saved", "{step}", every_n_train_steps=1, save_top_k=-1)
    trainer(tmp_path / "b", saver, StopAfter(2), max_epochs=3).fit(mmcl(**GRAPHS), tu(tmp_path))
    resumed = mmcl(seed=9, **GRAPHS)
    path = tmp_path / "saved" / f"step={steps}.ckpt"
    trainer(tmp_path / "c", max_epochs=3).fit(resumed, tu(tmp_path), ckpt_path=path)
    assert torch.equal(weights(resumed), weights(whole))


def test_predictions_name_every_graph(tmp_path: Path) -> None:
    module, data = simclr(**GRAPHS), tu(tmp_path)
    out = tmp_path / "out.npz"
    trainer(tmp_path, RepresentationWriter(str(out))).predict(module, data, return_predictions=False)
    with np.load(out) as found:
        assert found["h"].shape == (24, 96)
        assert found["z"].shape == (24, 16)
        assert found["path"].tolist() == [str(i) for i in range(24)]
        assert found["class"].tolist() == ["-1", "1"] * 12
        module.eval()
        with torch.no_grad():
            h = torch.cat([module(view) for view, *_ in data.predict_dataloader()])
        np.testing.assert_allclose(found["h"], h.numpy(), rtol=1e-5, atol=1e-5)


def test_64_bits(tmp_path: Path) -> None:
    module = mmcl(**GRAPHS)
    trainer(tmp_path, Readouts(knn=KNN(k=3)), precision="64-true").fit(module, tu(tmp_path))
    assert {p.dtype for p in module.parameters()} == {torch.float64}


def test_moco_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"shuffles the items of tensors, .* DataBatch: use SimCLR or MMCL"):
        trainer(tmp_path).fit(moco(backbone="gin:7"), tu(tmp_path))


SMALL = ["--data.batch_size=8", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
FEW = ["--readouts.cv.folds=2", "--readouts.cv.inner_folds=2", "--trainer.max_epochs=1"]


def test_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tu(tmp_path / "data")
    fit = ["fit", "--config", "mutag_mmcl", *SMALL, *FEW]
    with caplog.at_level("INFO"):
        main([*fit, "--data.train_transform.pool=random3"])
    shown = capsys.readouterr()
    assert "MUTAG: 24 graphs, 142 nodes of 7 features, 260 directed edges" in caplog.text
    assert ", graphs/s " in caplog.text
    assert "jit.script" not in shown.err
    assert "SVC:          " in shown.out
    assert ", untrained 0." in shown.out
    with pytest.raises(SystemExit):
        main(["negatives", "--config", "mutag_mmcl", *SMALL, "--ckpt_path", "last"])
    assert "there are no pictures to look at: the items are DataBatch" in capsys.readouterr().err
    for arguments, words in (
        (["--model.backbone=gin:3"], "set --model.backbone gin:7"),
        (["--model.backbone=conv4"], "of type DataBatch, and the backbone takes images: for graphs set"),
        (["--model.backbone=resnet18"], "of type DataBatch, and the backbone takes images: for graphs set"),
        (["--data.train_transform.ratio=1.5"], "ratio must be a finite number in [0, 1), got 1.5"),
        (["--data.train_transform=GraphVeiws"], "did you mean GraphViews?"),
        (["--data.name=MUTAGS"], "did you mean MUTAG?"),
    ):
        with pytest.raises(SystemExit):
            main([*fit, *arguments])
        assert words in capsys.readouterr().err


def test_pictures_need_neither_torch_geometric_nor_scikit_learn(tmp_path: Path) -> None:
    by_torchvision = hasattr(torchvision.io, "read_video")  # which older ones import PyAV for
    wanted = ["torch_geometric", "sklearn", "cv2"] + ["av"] * (not by_torchvision)
    code = (
        "import sys\nfrom mmcl_lightning.cli import main\n"
        "main(['fit', '--config', 'quickstart', '--data.train_size=16', '--data.test_size=10',"
        " '--data.batch_size=8', '--data.num_workers=0', '--trainer.max_epochs=1',"
        " '--trainer.accelerator=cpu', '--trainer.enable_progress_bar=false'])\n"
        f"print('found', sorted({set(wanted)} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "found []" in done.stdout, done.stderr
