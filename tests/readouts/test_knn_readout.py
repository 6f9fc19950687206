"""Several protocols, storage, best value, kinds of batches and modules of the k-NN readout."""

from __future__ import annotations

import gc
import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from runs import Plain, StopAfter, events, image_loader, scalars, trainer
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from mmcl_lightning.callbacks import OnlineKNN, Readouts
from mmcl_lightning.errors import ConfigError, NumericalError
from mmcl_lightning.features import collect_features
from mmcl_lightning.metrics import KNNProtocol, knn_accuracy, knn_predict, knn_scores
from mmcl_lightning.readouts import KNN, Embedding, Health, reading


def noisy(count: int, seed: int) -> DataLoader[Any]:
    """Images whose label tells their brightness three times in four, so that protocols differ."""
    draws = torch.randint(3, (count,), generator=torch.Generator().manual_seed(seed))
    labels = torch.where(torch.arange(count) % 4 > 0, torch.arange(count) % 3, draws)
    return image_loader(count, seed=seed, labels=labels)


BANK, QUERY = noisy(40, 1), noisy(21, 2)


def given(**options: Any) -> OnlineKNN:
    return OnlineKNN(bank_loader=BANK, query_loader=QUERY, **({"k": 5} | options))


def test_protocols_in_one_pass(tmp_path: Path) -> None:
    class Counting(Plain):
        passed = 0

        def forward(self, x: Tensor) -> Tensor:
            self.passed += len(x) * (not self.training)
            return super().forward(x)

    module = Counting()
    module.projection_head = torch.nn.Linear(5, 3)
    grid = [
        "dino",
        {"k": 3, "temperature": 2.0, "feature": "z"},
        KNNProtocol(2, 1.0, normalize=False, name="me"),
    ]
    knn = given(
        temperature=0.2, protocols=[*grid, {"k": 5, "temperature": 0.2}]
    )  # the last is the first again
    run = trainer(tmp_path, knn, log=True)
    run.fit(module)
    assert module.passed == 2 * (40 + 21)  # before training and after the epoch
    names = {"": (5, 0.2, "h", True), "/dino": (20, 0.07, "h", True), "/k3_T2_z": (3, 2.0, "z", True)}
    names |= {"/me": (2, 1.0, "h", False)}
    values = {}
    for name, options in names.items():
        sides = [x for loader in (QUERY, BANK) for x in collect_features(run, module, loader, options[2])]
        for top, value in knn_accuracy(*sides, 3, KNNProtocol(*options)).items():
            values[f"knn/{top}{name}"] = value
    assert {name for name in run.callback_metrics if name.startswith("knn")} == {*values, "knn/best_top1"}
    for name, value in values.items():
        assert float(run.callback_metrics[name]) == pytest.approx(value), name
        assert len(scalars(tmp_path, name)) == 2
    assert len(set(values.values())) > 3
    assert knn.described == "k=5 T=0.2 cosine h, bank 40, queries 21"
    assert knn.protocol_texts["knn/top1/me"] == "k=2 T=1 dot h, bank 40, queries 21"
    text = events(tmp_path).Tensors("knn/protocol/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.startswith(knn.described)
    assert "knn/top1/k3_T2_z: k=3 T=2 cosine z" in text


def test_equals_scikit_learn_on_the_features_of_the_module(tmp_path: Path) -> None:
    knn, k, T = given(k=9, temperature=0.3), 9, 0.3
    run, module = trainer(tmp_path, knn, max_epochs=2), Plain()
    run.fit(module)
    (query, targets), (bank, labels) = (collect_features(run, module, x) for x in (QUERY, BANK))
    model = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d) / T), metric="cosine", algorithm="brute")
    model.fit(bank.double().numpy(), labels.numpy())
    wanted = torch.from_numpy(model.predict_proba(query.double().numpy()))
    scores = knn_scores(query, bank, labels, 3, k=k, temperature=T).double()
    torch.testing.assert_close(scores / scores.sum(1, keepdim=True), wanted, rtol=1e-4, atol=1e-6)
    predicted = model.predict(query.double().numpy())
    assert knn_predict(query, bank, labels, 3, k=k, temperature=T).tolist() == predicted.tolist()
    assert knn.curve[-1][1] == (predicted == targets.numpy()).mean()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("device", ["module", "cpu"])
def test_storage_of_the_bank(
    dtype: Any, device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    real = reading.feature_pass
    monkeypatch.setattr(reading, "feature_pass", lambda *a, **o: found.append(real(*a, **o)) or found[-1])
    knn = given(bank_dtype=dtype, bank_device=device, chunk_size=4)
    run, module = trainer(tmp_path, knn), Plain()
    run.fit(module)
    bank, query = found[-2:]
    assert (bank.features["h"].dtype, query.features["h"].dtype) == (getattr(torch, dtype), torch.float32)
    assert bank.features["h"].device.type == "cpu"
    (rows, labels), (queries, targets) = (collect_features(run, module, x) for x in (BANK, QUERY))
    stored = rows.to(getattr(torch, dtype))
    wanted = knn_accuracy(queries, targets, stored, labels, 3, KNNProtocol(5))
    assert knn.curve[-1][1] == wanted["top1"]


def test_features_are_freed_after_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[Any] = []
    real = reading.feature_pass

    def watched(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        alive.extend(weakref.ref(rows) for rows in found.features.values())
        return found

    class Freed(Callback):
        counts: tuple[int, ...] = ()

        def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            gc.collect()
            self.counts += (sum(rows() is not None for rows in alive),)

    monkeypatch.setattr(reading, "feature_pass", watched)
    watch = Freed()
    both = Readouts(knn=KNN(k=5), health=Health(images=10), bank_loader=BANK, query_loader=QUERY)
    trainer(tmp_path, both, watch, max_epochs=3).fit(Plain())
    assert len(alive) == 2 * 4
    assert watch.counts == (0, 0, 0)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x, y: (x, y, [f"{i}.png" for i in range(len(x))]),
        lambda x, y: {"image": x, "label": y, "path": "p"},
        lambda x, y: {"images": x, "targets": y.tolist()},
        lambda x, y: [x, y[:, None].int()],
    ],
)
def test_batches_of_other_projects(wrap: Any, tmp_path: Path) -> None:
    plain = given()
    trainer(tmp_path, plain).fit(Plain())
    bank, query = ([wrap(*batch) for batch in loader] for loader in (BANK, QUERY))
    knn = OnlineKNN(k=5, bank_loader=bank, query_loader=query)
    trainer(tmp_path, knn).fit(Plain())
    assert knn.curve == plain.curve


def test_unlabelled_rows_are_left_out_of_bank_and_query(tmp_path: Path) -> None:
    curves = []
    for extra in (0, 7):  # unlabelled images before and after the labelled ones
        sides = []
        for loader in (BANK, QUERY):
            images, labels = loader.dataset.tensors
            noise, none = torch.rand(extra, 3, 16, 16), torch.full((extra,), -1)
            data = TensorDataset(torch.cat([noise, images, noise]), torch.cat([none, labels, none]))
            sides.append(DataLoader(data, batch_size=9))
        knn = OnlineKNN(k=5, bank_loader=sides[0], query_loader=sides[1])
        trainer(tmp_path, knn).fit(Plain())
        curves.append(knn.curve)
    assert curves[0] == curves[1]


def test_the_best_value_is_logged_and_survives_a_resume(tmp_path: Path) -> None:
    class Blind(Callback):
        """Makes all features equal before the readout."""

        def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            pl_module.net[4].weight.data.zero_()

    def pieces(folder: str) -> tuple[OnlineKNN, list[Callback]]:
        knn = given()
        return knn, [knn, ModelCheckpoint(tmp_path / folder, save_last=True)]

    knn, callbacks = pieces("a")
    trainer(tmp_path, *callbacks, StopAfter(2), max_epochs=4).fit(Plain())
    path = callbacks[1].last_model_path  # type: ignore[attr-defined]
    saved = torch.load(path, weights_only=True)["callbacks"]["OnlineKNN"]
    assert knn.best == max(knn.curve, key=lambda point: (point[1], -point[0]))
    assert saved["values"]["knn"]["knn/best_top1"] == knn.best[1]
    assert list(knn.best) in saved["readouts"]["knn"]["curve"]
    resumed, callbacks = pieces("b")
    trainer(tmp_path, Blind(), *callbacks, max_epochs=4, log=True).fit(Plain(), ckpt_path=path)
    assert [epoch for epoch, _ in resumed.curve] == [0, 1, 2, 3, 4]
    assert resumed.curve[-1][1] < knn.best[1]
    assert resumed.best == knn.best
    assert [value for _, value in scalars(tmp_path, "knn/best_top1")] == pytest.approx([knn.best[1]] * 2)


def test_a_checkpoint_of_an_earlier_version_is_taken_up() -> None:
    knn = OnlineKNN()
    knn.load_state_dict(
        {"curve": [[0, 0.2], [1, 0.5], [2, 0.4]], "values": {"knn/top1": 0.4, "knn/top5": 1.0}}
    )
    assert knn.best == (1, 0.5)
    assert knn.state_dict()["values"] == {"knn": {"knn/top1": 0.4, "knn/top5": 1.0, "knn/best_top1": 0.5}}
    assert OnlineKNN().best is None
    assert OnlineKNN().state_dict()["values"] == {}


def test_training_is_the_same_bit_by_bit_with_all_readouts(tmp_path: Path) -> None:
    """Weights, batch-norm statistics, momentum, modes and every random state, with shuffled workers."""
    ends = []
    for with_them in (False, True):
        module = Plain()
        module.projection_head = torch.nn.Linear(5, 3)
        bank = image_loader(24, seed=1, shuffle=True, num_workers=1)
        views = [([torch.rand(4, 3, 16, 16)] * 2, torch.zeros(4))]
        for state in (torch.manual_seed, random.seed, np.random.seed):
            state(7)
        readouts = Readouts(
            knn=KNN(protocols=["dino", {"feature": "z"}]),
            health=Health(),
            embedding=Embedding(images=8),
            bank_loader=bank,
            query_loader=QUERY,
            view_loader=views,
        )
        run = trainer(tmp_path, *([readouts] if with_them else []), max_epochs=3, log=with_them)
        run.fit(module)
        momentum = [x["momentum_buffer"] for x in run.optimizers[0].state.values() if "momentum_buffer" in x]
        tensors = [*module.state_dict().values(), *momentum, torch.get_rng_state()]
        ends.append(
            (tensors, random.getstate(), np.random.get_state(), [m.training for m in module.modules()])  # noqa: NPY002
        )
    (alone, *rest), (watched, *others) = ends
    assert len(alone) == len(watched) > 14
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert str(rest) == str(others)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"protocols": ["paper"]}, "protocol must be one of dino, instdisc, mmcl_paper, got 'paper'"),
        ({"protocols": [{"K": 3}]}, "a k-NN protocol has the options k, temperature, .* got K"),
        ({"protocols": [{"k": 0}]}, "k must be at least 1"),
        ({"protocols": [{"k": 3, "name": "a"}, {"k": 4, "name": "a"}]}, "need different names, got a, a"),
        ({"bank_device": "gpu"}, "bank_device must be 'module' or 'cpu', got 'gpu'"),
        ({"bank_dtype": "int8"}, "bank_dtype must be 'float32', 'float16' or 'bfloat16', got 'int8'"),
        ({"chunk_size": 0}, "chunk_size must be an integer >= 1"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        OnlineKNN(**options)


def test_names_of_protocols() -> None:
    def names(*protocols: Any) -> list[str]:
        return [protocol.name for protocol in KNN(protocols=protocols).protocols[1:]]

    assert names("dino", {"protocol": "dino", "feature": "z"}) == ["dino", "k20_T0.07_z"]
    assert names({"temperature": 0.25}, {"k": 200, "temperature": 0.5}) == ["k200_T0.25_h"]
    assert names({"normalize": False}) == ["k200_T0.5_h_dot"]
    assert KNN(protocols="dino").protocols[1].name == "dino"


def test_features_that_leave_the_range_of_half_precision(tmp_path: Path) -> None:
    class Large(Plain):
        def forward(self, x: Tensor) -> Tensor:
            return 1e6 * super().forward(x)

    with pytest.raises(NumericalError, match=r"rows of the bank features hold .* too large for float16"):
        trainer(tmp_path, given(bank_dtype="float16")).fit(Large())
