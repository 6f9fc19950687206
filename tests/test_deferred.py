"""No loss and no solver waits for a GPU: checks are put off, and what they find is raised later."""

from __future__ import annotations

import functools
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import BASELINES, KERNELS, RULES, make_views, name
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from runs import Plain, Recorder, mmcl, moco, scalars, shapes, trainer
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmcl_lightning import MoCo
from mmcl_lightning.callbacks import Readouts
from mmcl_lightning.deferred import DeferredChecks, check, checks_of, may_wait
from mmcl_lightning.errors import NumericalError
from mmcl_lightning.kernels import RBF, Kernel, Polynomial, Tanh
from mmcl_lightning.losses import (
    ContrastiveLoss,
    HardNegativeMixing,
    InfoNCELoss,
    MMCLLoss,
    WeightedContrastiveLoss,
)
from mmcl_lightning.readouts import LinearProbe
from mmcl_lightning.svm import Exact, Inverse, Solver, Status, max_margin_dual

pytestmark = pytest.mark.starts_threads

LOSSES: tuple[ContrastiveLoss, ...] = (
    *BASELINES,
    *(WeightedContrastiveLoss(rule) for rule in RULES),
    MMCLLoss(),
    MMCLLoss(solver=Exact(), symmetric=True, negatives="one"),
    MMCLLoss(Tanh(), C=1.0),
    MMCLLoss(RBF(gamma="median")),
    MMCLLoss.reference(),
)


def finite(values: list[float]) -> None:
    if not all(map(math.isfinite, values)):
        raise NumericalError(f"found {values}")


def test_a_check_is_immediate_unless_it_is_collected() -> None:
    with pytest.raises(NumericalError, match=r"^found \[nan\]"):
        check(torch.tensor(math.nan), finite)
    checks = DeferredChecks()
    for step in range(3):
        with checks.collect(f"training step {step}"):
            assert not may_wait()
            check(torch.tensor([1.0, math.inf if step == 1 else 2.0]), finite)
            check(torch.tensor(step), finite)
    assert may_wait()
    assert len(checks) == 6
    with pytest.raises(NumericalError, match=r"^training step 1: found \[1.0, inf\]"):
        checks.look()
    checks.look()  # nothing is said twice
    assert len(checks) == 0


def test_it_looks_by_itself_before_the_checks_are_too_many() -> None:
    checks = DeferredChecks(most=2)

    def step() -> None:
        with checks.collect("an early one"):
            check(torch.tensor(math.nan), finite)

    step()
    step()
    with pytest.raises(NumericalError, match=r"an early one: found"):
        step()


def test_a_copy_has_no_checks_of_its_own() -> None:
    loss = MMCLLoss()
    with loss._checks.collect():
        loss(*make_views(4, 3))
    assert len(loss._checks) == 4  # projections, kernel, factorisation, loss
    assert len(pickle.loads(pickle.dumps(loss))._checks) == 0


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_loss_asks_a_gpu_for_a_value(loss: ContrastiveLoss, dtype: torch.dtype) -> None:
    """On tensors that claim to lie on a GPU and have no values, asking for one is an error."""
    loss = type(loss)(**loss.options())
    with FakeTensorMode(allow_non_fake_inputs=True):
        value = loss(*(torch.randn(8, 4, device="cuda", dtype=dtype) for _ in range(2)))
    assert value.device.type == "cuda"
    assert len(loss._checks) >= 2


def test_the_loss_with_a_queue_asks_for_none_either() -> None:
    with FakeTensorMode():
        query, key, queue = (torch.randn(n, 4, device="cuda") for n in (8, 8, 32))
        assert InfoNCELoss()(query, key, queue).device.type == "cuda"


def test_moco_reads_how_many_keys_it_saw_once() -> None:
    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    def reads(module: MoCo) -> list[int]:
        counts = []
        for _ in range(3):
            with DeferredChecks().collect(), Reads() as found:
                module.loss_of_views([torch.rand(16, 3, 16, 16) for _ in range(2)])
                assert module._new_keys is not None
                module._enqueue(module._new_keys)
            counts.append(found.count)
        return counts

    mixing = HardNegativeMixing(8, 8, 4)
    options: dict[str, Any] = {"queue_size": 32, "mixing": mixing, "mixing_start": 0, "chunk_size": 8}
    first, loaded = moco(**options), moco(**options)
    assert reads(first) == [0, 0, 0]
    loaded.load_state_dict(first.state_dict())
    assert reads(loaded) == [1, 0, 0]
    assert loaded._keys_seen == loaded.keys_seen == 2 * 3 * 16


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.positive_semidefinite], ids=name)
@pytest.mark.parametrize("solver", [Inverse(), Exact(), Exact(rho=2.0)], ids=repr)
def test_deferred_values_are_those_that_were_looked_at(kernel: Kernel, solver: Solver) -> None:
    z0, z1 = make_views(12, 6, seed=3)
    loss = MMCLLoss(kernel, solver, reg=0.3)
    at_once = loss(z0, z1)
    checks = DeferredChecks()
    with checks.collect():
        later = loss(z0, z1)
    checks.look()
    torch.testing.assert_close(later, at_once, rtol=1e-3 if isinstance(solver, Exact) else 1e-9, atol=0)


def test_what_a_loss_finds_is_raised_when_somebody_looks() -> None:
    z0, z1 = make_views(6, 4, seed=5)
    loss, checks = MMCLLoss(), DeferredChecks()
    with checks.collect("step 0"):
        loss(z0, z1)
    z0[2, 1] = math.nan
    with checks.collect("step 1"):
        loss(z0, z1)
    with pytest.raises(NumericalError, match=r"^step 1: projections .*: 1 of 6 rows of view 0 and 0 of"):
        checks.look()
    large = MMCLLoss(Polynomial(degree=40), normalize=False)
    with checks.collect("step 2"):
        large(*(100 * view.float() for view in make_views(6, 4)))
    with pytest.raises(NumericalError, match=r"^step 2: the kernel matrix of Polynomial\(.* not finite"):
        checks.look()


def test_a_matrix_that_cannot_be_factorised_is_repaired_and_told() -> None:
    z = make_views(6, 4, seed=5)[0].float().repeat(2, 1)
    problem = max_margin_dual(z @ z.T, torch.arange(6), C=1.0, reg=0.0)
    checks = DeferredChecks()
    with checks.collect():
        solution = Inverse()(problem)
    checks.look()
    assert solution.alpha.isfinite().all()
    assert solution.retries == 1
    assert 0 < solution.extra_ridge < 1e-4
    assert solution.findings.tolist() == [list(Status).index(Status.TRUNCATED), 1.0, solution.extra_ridge]
    indefinite = max_margin_dual(-z @ z.T, torch.arange(6), C=1.0, reg=0.1)
    with checks.collect("step 7"):
        Inverse()(indefinite)
    with pytest.raises(NumericalError, match=r"^step 7: K .* is not positive definite for the kernel"):
        checks.look()


def test_the_status_of_the_fixed_path_is_read_when_it_is_asked_for() -> None:
    z = torch.cat(make_views(16, 4, seed=5)).float()
    problem = max_margin_dual(z @ z.T, torch.arange(16))
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.randn(32, 4, device="cuda")
        rows = torch.arange(16, device="cuda")
        with DeferredChecks().collect():
            solution = Exact()(max_margin_dual(fake @ fake.T, rows))
    assert isinstance(solution._status, Tensor)
    solved = Exact(path="fixed")(problem)
    assert isinstance(solved._status, Tensor)
    assert solved.status == Status.CONVERGED
    assert solved.kkt_residual is not None
    assert solved.kkt_residual.max() <= 1e-4
    assert Exact(path="fixed", max_steps=3)(problem).status == Status.MAX_STEPS


class _Poison(Callback):
    """Makes the weights of the head nan after a batch."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == self.after:
            for weight in pl_module.projection_head.parameters():
                weight.data.fill_(math.nan)


@pytest.mark.parametrize(("every", "seen"), [(4, 4), (50, 4), (2, 2)])
def test_training_names_the_step_at_the_next_log(
    every: int, seen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the step is not over until a log, or the end of the epoch, looks."""
    monkeypatch.setattr(DeferredChecks, "defers", staticmethod(lambda device: True))
    module = mmcl()
    fit = trainer(tmp_path, _Poison(after=0), log_every_n_steps=every)
    with pytest.raises(NumericalError, match=r"^training step 1: projections are not finite"):
        fit.fit(module, shapes())
    assert fit.global_step == seen


def test_training_with_deferred_checks_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for deferred in (False, True):
        if deferred:
            monkeypatch.setattr(DeferredChecks, "defers", staticmethod(lambda device: True))
        recorder = Recorder()
        trainer(tmp_path, recorder).fit(mmcl(), shapes())
        ends.append(recorder.loss)
    assert len(ends[0]) == 4
    assert ends[1] == pytest.approx(ends[0], rel=1e-3)


NAMES = ("svm/margin", "svm/sv_fraction", "svm/retries", "probe/loss", "train/loss", "train/lr")


def fit(folder: Path, *callbacks: Any, module: Any = None, **options: Any) -> dict[str, list[Any]]:
    """Train for two epochs of four steps, and return what was written."""
    options = {"log": True, "max_epochs": 2, "log_every_n_steps": 3} | options
    trainer(folder, Readouts(probe=LinearProbe()), *callbacks, **options).fit(module or mmcl(), shapes())
    return {tag: scalars(folder, tag) for tag in NAMES}


def test_a_logged_step_is_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of module, callback and probe together."""
    expected = fit(tmp_path / "cpu")
    assert {step for points in expected.values() for step, _ in points} == {2, 5}
    look, waits = DeferredChecks.look, []

    def counted(self: DeferredChecks) -> None:
        if len(self):
            waits.append(len(self))
        look(self)

    monkeypatch.setattr(DeferredChecks, "look", counted)
    monkeypatch.setattr(DeferredChecks, "defers", staticmethod(lambda device: True))
    found = fit(tmp_path / "gpu")
    assert len(waits) == 4  # at two logged steps, and for the rest of the steps at the ends of epochs
    for tag, points in expected.items():
        assert [step for step, _ in found[tag]] == [step for step, _ in points], tag
        assert [value for _, value in found[tag]] == pytest.approx([value for _, value in points], rel=1e-3)


@pytest.mark.parametrize("defers", [False, True])
@pytest.mark.parametrize("monitor", ["svm/margin", "probe/loss", "train/loss", "train/lr"])
def test_a_monitor_sees_the_number_of_its_step(
    monitor: str, defers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeferredChecks, "defers", staticmethod(lambda device: defers))
    save = ModelCheckpoint(tmp_path / "saved", "{step}", monitor, every_n_train_steps=1, save_top_k=-1)
    written = fit(tmp_path, save, enable_checkpointing=True, log_every_n_steps=1)
    scores = {int(Path(path).stem.partition("=")[2]): float(v) for path, v in save.best_k_models.items()}
    assert [scores[step] for step in range(1, 9)] == pytest.approx([v for _, v in written[monitor]], abs=1e-6)


def test_the_loss_of_the_probe_is_there_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with fewer steps in an epoch than between two logs."""
    for defers in (False, True):
        monkeypatch.setattr(DeferredChecks, "defers", staticmethod(lambda device, defers=defers: defers))
        stop = EarlyStopping("probe/loss", check_on_train_epoch_end=True)
        probe = Readouts(probe=LinearProbe())
        trainer(tmp_path, probe, stop, max_epochs=2, log_every_n_steps=50).fit(mmcl(), shapes())
        assert float(stop.best_score) > 0


def test_a_run_that_broke_off_leaves_no_checks_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeferredChecks, "defers", staticmethod(lambda device: True))

    class Full(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise OSError("no space left on device")

    module = mmcl()
    torch.nn.init.constant_(next(module.projection_head.parameters()), math.nan)
    with pytest.raises(OSError, match="no space"):
        trainer(tmp_path / "one", Full()).fit(module, shapes())
    assert len(module._deferred_checks) > 0  # of numbers that are not finite
    module.load_state_dict(mmcl().state_dict())
    trainer(tmp_path / "two").fit(module, shapes())
    assert len(module._deferred_checks) == 0


def test_the_checks_of_a_module_are_shared_and_those_of_others_are_not() -> None:
    own, module = DeferredChecks(), mmcl()
    assert checks_of(module, own) is module._deferred_checks
    other = Plain()
    assert checks_of(other, own) is own
    other._deferred_checks = "something else"
    assert checks_of(other, own) is own


# Compiled


@pytest.mark.parametrize(
    "loss",
    [*BASELINES[:2], BASELINES[5], WeightedContrastiveLoss(), MMCLLoss(), MMCLLoss(form="log"),
     MMCLLoss(solver=Exact(max_steps=12, path="fixed"))],
    ids=lambda loss: loss.method,
)  # fmt: skip
def test_a_loss_is_one_graph(loss: ContrastiveLoss) -> None:
    z0, z1 = (view.float().requires_grad_() for view in make_views(8, 6, seed=4))
    value = loss(z0, z1)
    expected = torch.autograd.grad(value, (z0, z1))
    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(z0, z1)
    gradients = torch.autograd.grad(compiled, (z0, z1))
    torch.testing.assert_close(compiled, value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    torch._dynamo.reset()


def test_a_compiled_network_keeps_its_names_and_resumes_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    plain, compiled = mmcl(), mmcl(compile=True)
    names = list(plain.state_dict())
    fit = trainer(tmp_path)
    fit.fit(compiled, shapes())
    assert compiled.backbone._compiled_call_impl is not None
    assert list(compiled.state_dict()) == names
    trainer(tmp_path).fit(plain, shapes())
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    fit.save_checkpoint(tmp_path / "end.ckpt")
    saved = torch.load(tmp_path / "end.ckpt", weights_only=True)
    assert list(saved["state_dict"]) == names
    trainer(tmp_path, max_epochs=2).fit(mmcl(), shapes(), ckpt_path=tmp_path / "end.ckpt")
    torch._dynamo.reset()
