"""Recorder callbacks for Lightning and transformers."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import torch

from hyperribbon.core.checks import MissingExtraError

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback

    from hyperribbon.recording.recorder import Recorder


def lightning_callback(recorder: Recorder) -> Callback:
    """Return a Lightning callback that records with `recorder`.

    The trainer's own checkpoints resume the training (`trainer.fit(..., ckpt_path=...)`); records
    after the step it resumes from are dropped. Logged metrics are stored with every record.

    Raises:
        MissingExtraError: Lightning is not installed.
    """
    try:
        # A trainer accepts only callbacks of its own package.
        if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
            from pytorch_lightning import Callback
        else:
            from lightning.pytorch import Callback
    except ImportError:
        raise MissingExtraError("lightning", "lightning", "recording a Lightning run") from None

    class LightningRecording(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            steps, epochs = trainer.max_steps, trainer.max_epochs
            total = {"it": steps, "ep": epochs}[recorder.cadence.unit]
            recorder.attach(
                pl_module,
                trainer.optimizers[0] if len(trainer.optimizers) == 1 else None,
                step=trainer.global_step,
                total=_total(total, recorder.cadence.unit),
            )

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if trainer.global_step <= recorder.steps:
                return  # gradients are being accumulated
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            epoch = trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches
            metrics = _metrics(trainer.callback_metrics)
            recorder.step(loss, epoch=epoch, metrics=metrics, step=trainer.global_step)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            recorder.close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            recorder.release()

    return LightningRecording()


def transformers_callback(recorder: Recorder) -> TrainerCallback:
    """Return a callback for transformers' Trainer that records with `recorder`.

    The trainer's own checkpoints resume the training (`trainer.train(resume_from_checkpoint=...)`);
    records after the step it resumes from are dropped. The last logged numbers are stored with
    every record.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise MissingExtraError(
            "transformers", "transformers", "recording a transformers run"
        ) from None

    class TransformersRecording(TrainerCallback):
        def __init__(self) -> None:
            self.logged: dict[str, float] = {}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            total = {"it": state.max_steps, "ep": state.num_train_epochs}[recorder.cadence.unit]
            optimizer = kwargs.get("optimizer")
            recorder.attach(
                kwargs["model"],
                getattr(optimizer, "optimizer", optimizer),  # inside what accelerate wraps
                step=state.global_step,
                total=_total(total, recorder.cadence.unit),
            )

        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.logged = _metrics(kwargs.get("logs") or {})
            self.logged.pop("epoch", None)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            metrics = dict(self.logged)
            loss = metrics.pop("loss", None)
            recorder.step(loss, epoch=state.epoch, metrics=metrics, step=state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recorder.close()

    return TransformersRecording()


def _total(length: Any, unit: str) -> str | None:
    """Return for a callback the length of a run in the recorder's notation, if known."""
    return f"{length:g}{unit}" if isinstance(length, int | float) and length > 0 else None


def _metrics(logged: Any) -> dict[str, float]:
    """Return the scalars logged in a callback under valid metric names."""
    numbers = {}
    for name, value in logged.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, int | float):
            numbers[re.sub(r"[^\w.\-+@ ]", ".", name)] = float(value)
    return numbers
