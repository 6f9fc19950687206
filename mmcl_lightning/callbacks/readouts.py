"""All readouts of a run: when they read, what they share, what they log and how they go on after a stop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_warn

from mmcl_lightning._lightning import has_trained, is_last_epoch
from mmcl_lightning._options import check_flags, check_whole
from mmcl_lightning.callbacks.averaging import average_first, averages_of, checkpoint_weights
from mmcl_lightning.errors import ConfigError
from mmcl_lightning.readouts import (
    KNN,
    Embedding,
    Health,
    ImagesToRead,
    LinearProbe,
    LogisticRegression,
    Reading,
    Readout,
    Retrieval,
    SupportVectorGrid,
    SVCCrossValidation,
)
from mmcl_lightning.readouts.collection import EARLIER, collect_readouts, merged_state

__all__ = ["Readouts"]


class Readouts(Callback):
    """Look at the representation before training, every few epochs, and under ``trainer.validate``.

    Whichever readouts are there, the images of bank and query pass the network once per reading, in
    evaluation mode and in the precision of the training. Modes, batch-norm statistics and random states stay
    as they are, so a run with readouts trains as one without. The command line has the options of all of
    them under ``readouts``: ``--readouts.every_n_epochs 5 --readouts.knn.k 20 --readouts.probe null``.

    With several processes each has a share of the images; the numbers are those of one process. Loaders are
    to give all images on every process: a DataLoader over a data set with positions is shared out, a
    DistributedSampler in it replaced. Of an iterable every process loads all batches and computes its own.

    With ``WeightAveraging``, ``EMAWeightAveraging`` or ``StochasticWeightAveraging`` among the callbacks, in
    whatever order, what is read are the weights that a checkpoint of that moment holds.

    Args:
        every_n_epochs: Epochs between two readings. The first and the last epoch always have one.
        at_start: Read before the first step too, for the curves' starting point.
        knn: k-NN classification of held-out images; ``None`` to leave it out, as with the others.
        logistic: Logistic regression, fitted anew at every reading.
        probe: Linear classifier that is trained beside the network.
        retrieval: Whether the nearest training items show the class of a held-out one, as for videos.
        health: Effective rank, spread, uniformity and alignment.
        support_vectors: Pictures of the negatives that count.
        embedding: Features for TensorBoard's projector.
        cv: Support vector machine on all labelled items, by cross-validation.
        others: Readouts of your own.
        bank_loader: Batches of labelled training images without augmentation, ``(image, label, ...)`` or
            dicts with ``image`` and ``label``; ``None`` asks the datamodule's ``knn_dataloaders()``.
        query_loader: Batches of labelled held-out images.
        view_loader: Batches ``(views, ...)``, views a list of two ``(B, 3, H, W)``, for alignment; ``None``
            asks the datamodule.
        num_classes: Number of classes; ``None`` asks the datamodule.
        bank_device: Where the features of the bank lie: ``"module"``, or ``"cpu"`` to save the memory of a
            GPU.
        bank_dtype: How they are kept; halves save memory, products are float32 whatever it is.

    Reads:
        Any LightningModule whose ``forward`` maps images to ``(B, F)``, its ``projection_head`` for z; what
        ``training_step`` returns under ``"h"`` for the linear probe.

    Writes:
        What each readout writes. Values exist from the start, or from the end of the first epoch.

    Raises:
        ConfigError: If an option is out of range.
    """

    def __init__(
        self,
        every_n_epochs: int = 1,
        at_start: bool = True,
        knn: KNN | None = None,
        logistic: LogisticRegression | None = None,
        probe: LinearProbe | None = None,
        retrieval: Retrieval | None = None,
        health: Health | None = None,
        support_vectors: SupportVectorGrid | None = None,
        embedding: Embedding | None = None,
        cv: SVCCrossValidation | None = None,
        others: list[Readout] | None = None,
        bank_loader: Iterable[Any] | None = None,
        query_loader: Iterable[Any] | None = None,
        view_loader: Iterable[Any] | None = None,
        num_classes: int | None = None,
        bank_device: Literal["module", "cpu"] = "module",
        bank_dtype: Literal["float32", "float16", "bfloat16"] = "float32",
    ) -> None:
        check_whole(1, every_n_epochs=every_n_epochs)
        check_flags(at_start=at_start)
        self.every_n_epochs = every_n_epochs
        self.at_start = at_start
        self.images = ImagesToRead(
            bank_loader, query_loader, view_loader, num_classes, bank_device, bank_dtype
        )
        named: dict[str, Any] = {
            "knn": knn, "logistic": logistic, "probe": probe, "retrieval": retrieval, "health": health,
            "support_vectors": support_vectors, "embedding": embedding, "cv": cv,
        }  # fmt: skip
        self.readouts = collect_readouts(named, others)
        self._forget()

    def _forget(self) -> None:
        """Return to the state before any run."""
        for readout in self.readouts.values():
            readout.reset()
        self._values: dict[str, dict[str, float]] = {}  # the latest of each readout
        self._kept: dict[str, Any] = {}  # loaders, with their workers
        self._averages = ""  # by which callbacks the weights are averaged that are read
        self._weights_read: list[float] = []  # sums over them, of the last reading
        self._epoch = 0  # that ended last in this session
        self._read_after_it: set[str] = set()
        self._interrupted: set[str] = set()  # an error or a signal cut them off: a resume repeats them

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget another run; a checkpoint, which is read after this, brings back its own.

        Raises:
            ConfigError: If two readouts of one kind would write under the same names.
        """
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        everyone = [part for part in callbacks if isinstance(part, Readouts)] or [self]
        kinds = [type(readout) for part in everyone for readout in part.readouts.values()]
        ours = [kind for kind in kinds if kind.__module__.startswith("mmcl_lightning.")]
        twice = sorted({kind.__name__ for kind in ours if ours.count(kind) > 1})
        if twice:
            raise ConfigError(
                f"expected one readout of a kind, got several of {', '.join(twice)}, which write under the "
                "same names: keep one, in trainer.callbacks or in readouts (null leaves one out there); "
                "KNN(protocols=...) reads several protocols"
            )
        if stage == "fit" and not has_trained(trainer):
            self._forget()
        average_first(trainer, self)
        self._averages = " and ".join(type(part).__name__ for part in averages_of(trainer))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read once before training, or take up the values of the checkpoint."""
        due = {
            name: readout for name, readout in self.readouts.items()
            if name in self._interrupted or (self.at_start and readout.at_start and not readout.has_read)
        }  # fmt: skip
        reading = self._reading(trainer, pl_module, due, trainer.current_epoch)
        for readout in self.readouts.values():
            readout.start(reading)
        for name, readout in due.items():
            self._write(trainer, self._read(name, readout, reading))
        for values in self._values.values():
            trainer.callback_metrics.update({name: torch.tensor(v) for name, v in values.items()})

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Hand the representations of the batch to the readouts that learn from them."""
        if outputs is None or outputs == {}:  # the step was skipped
            return
        h = outputs.get("h") if isinstance(outputs, dict) else None
        for readout in self.readouts.values():
            readout.train_batch(trainer, pl_module, h, batch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read what is due."""
        self._epoch = trainer.current_epoch + 1
        self._read_after_it = set()
        for values in self._read_due(trainer, pl_module, is_last_epoch(trainer)):
            _log(pl_module, values)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read what is due after the last epoch, where another callback ended the run or changed weights."""
        if self._epoch:  # StochasticWeightAveraging puts its average there only now without batch norm
            with checkpoint_weights(trainer, pl_module) as sums:
                if sums != self._weights_read:
                    self._read_after_it = set()
            for values in self._read_due(trainer, pl_module, last=True):
                self._write(trainer, values)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so where the last reading was cut off and no step was left, so that nothing made up for it."""
        if self._interrupted:
            rank_zero_warn(
                f"the last reading of {', '.join(sorted(self._interrupted))} was interrupted: "
                "`validate --ckpt_path last` gives it"
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let the loaders go, and with them their workers."""
        self._kept = {}

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Let the loaders go here too: there is no teardown."""
        self._kept = {}

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read under ``trainer.validate``; during ``fit`` the end of the training epoch does it."""
        if trainer.state.fn == TrainerFn.VALIDATING:
            due = {name: readout for name, readout in self.readouts.items() if readout.in_validation}
            reading = self._reading(trainer, pl_module, due, trainer.current_epoch)
            for readout in due.values():
                with checkpoint_weights(trainer, pl_module):
                    _log(pl_module, readout.compute(reading))

    @property
    def protocol_texts(self) -> dict[str, str]:
        """How the numbers were measured, in words, by the name of the number."""
        weights = f"; weights as checkpoints hold them under {self._averages}" if self._averages else ""
        texts = [item for readout in self.readouts.values() for item in readout.protocol_texts.items()]
        return {name: text + weights for name, text in texts}

    def summary(self) -> list[str]:
        """Return lines on the whole run."""
        return [line for readout in self.readouts.values() for line in readout.summary()]

    def state_dict(self) -> dict[str, Any]:
        """Return the latest values, what was interrupted, and the state of every readout."""
        return {
            "values": {name: dict(values) for name, values in self._values.items()},
            "interrupted": sorted(self._interrupted),
            "read": sorted(name for name, readout in self.readouts.items() if readout.has_read),
            "readouts": {name: readout.state_dict() for name, readout in self.readouts.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what :meth:`state_dict` returned; of readouts that are gone, nothing."""
        if "readouts" not in state_dict:  # of OnlineKNN in an earlier version
            state_dict = merged_state({"knn": state_dict})
        for name, readout in self.readouts.items():
            if name in state_dict["readouts"]:
                readout.load_state_dict(state_dict["readouts"][name])
                values = readout.kept(dict(state_dict["values"].get(name, {})))
                readout.has_read = bool(values) or name in state_dict.get("read", ())
                if values:
                    self._values[name] = values
        self._interrupted = set(state_dict["interrupted"]) & self.readouts.keys()

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take up what other callbacks saved: OnlineKNN, or in an earlier version one per readout."""
        saved = checkpoint.get("callbacks", {})
        states = {name: saved[key] for name, key in EARLIER.items() if key in saved}
        if self.state_key in saved:
            return
        if Readouts.__qualname__ in saved:  # and this is OnlineKNN
            self.load_state_dict(saved[Readouts.__qualname__])
        elif states:
            self.load_state_dict(merged_state(states))

    def _reading(
        self, trainer: Trainer, module: LightningModule, due: dict[str, Readout], epoch: int
    ) -> Reading:
        needs: dict[str, set[str]] = {}
        for readout in due.values():
            for images, kinds in readout.needs(module).items():
                needs[images] = needs.get(images, set()) | kinds
        return Reading(trainer, module, self.images, needs, epoch, self._kept)

    def _read_due(self, trainer: Trainer, module: LightningModule, last: bool) -> Iterator[dict[str, float]]:
        """Read what is due after the epoch that has ended, and was not read after it."""
        due = {
            name: readout for name, readout in self.readouts.items()
            if name not in self._read_after_it
            and readout.is_due(self._epoch, last, readout.every_n_epochs or self.every_n_epochs)
        }  # fmt: skip
        self._interrupted |= due.keys()
        reading = self._reading(trainer, module, due, self._epoch)
        for name, readout in due.items():
            yield self._read(name, readout, reading)
            self._read_after_it.add(name)

    def _write(self, trainer: Trainer, values: dict[str, float]) -> None:
        """Write values where the module cannot log."""
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)
        trainer.callback_metrics.update({name: torch.tensor(v) for name, v in values.items()})

    def _read(self, name: str, readout: Readout, reading: Reading) -> dict[str, float]:
        with checkpoint_weights(reading.trainer, reading.module) as self._weights_read:
            values = readout.compute(reading)
        if not isinstance(values, dict):
            raise ConfigError(
                f"compute of {type(readout).__name__} must return a dict of values, which may be empty, got "
                f"{type(values).__name__}"
            )
        values = readout.record(reading.epoch, values)
        readout.has_read = True
        if values:
            self._values[name] = values
        self._interrupted.discard(name)
        return values


def _log(module: LightningModule, values: dict[str, float]) -> None:
    # Every process has the same values; their maximum is exact, which their mean is not.
    module.log_dict(values, batch_size=1, reduce_fx="max", sync_dist=True)
