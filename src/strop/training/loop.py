"""`train`: trains a model from a preset and data, and resumes exactly."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.collectives import summed
from strop.config import flatten, from_dict, to_dict
from strop.data.record import Dataset
from strop.device import choose_device, describe_machine, sound_attention, to_device
from strop.errors import ConfigError, TrainingError
from strop.files import PathLike, write_json
from strop.identity import DIGITS, of_tensors
from strop.model.checkpoint import load
from strop.model.length_head import RateHead
from strop.model.tokenizer import Tokenizer, check_tokenizer
from strop.progress import Progress, no_progress, shown
from strop.training import distributed
from strop.training.callbacks import (
    LOGGER,
    Callback,
    Metrics,
    MetricsFile,
    read_metrics,
)
from strop.training.decoder_training import ABOUT_WIDTHS
from strop.training.forward import TERMS, ExtraLoss, StepConfig, step_values
from strop.training.lengths import calibrate, measure
from strop.training.plots import plot_run
from strop.training.preset import Preset, load_preset
from strop.training.run_checkpoint import (
    Checkpoint,
    check_same,
    checkpoint_paths,
    open_run,
    restore,
    state_of,
    write_checkpoint,
)
from strop.training.run_data import RunData, open_data
from strop.training.step import MOST_SPOILT, Stepper
from strop.training.validation import validate

MAY_CHANGE = frozenset(
    {
        "name",
        "training.data",
        "training.compile",
        "training.log_every",
        "training.validate_every",
        "training.checkpoint_every",
        "training.keep_checkpoints",
        "training.loss_limit",
    }
)
"""Settings that may change when a run is resumed, because they do not affect the weights."""


@dataclass(frozen=True)
class Result:
    """The result of `train`.

    finished  False if a signal stopped the run; `resume` continues it
    step      optimizer steps taken
    metrics   of the last validation
    """

    tokenizer: Tokenizer
    finished: bool
    step: int
    metrics: Metrics
    folder: Path | None


def train(
    preset: Preset | str | Path,
    data: PathLike | Dataset | Tensor | None = None,
    *,
    out: PathLike | None = None,
    validation: PathLike | Dataset | Tensor | None = None,
    cache: PathLike | None = None,
    teacher: str | None = None,
    resume: bool = False,
    init: Tokenizer | PathLike | None = None,
    tokenizer: Tokenizer | None = None,
    extra_loss: ExtraLoss | None = None,
    callbacks: Sequence[Callback] = (),
    progress: Progress | bool = True,
    device: str | torch.device | None = None,
    loading_workers: int = 0,
) -> Result:
    """Train a tokenizer.

    preset      a name, a `.toml` file, or a `Preset`
    data        a spec such as `folder:/photos`, a dataset, or fields (n, m, S, d_enc): m versions
                of each image, the first of them unchanged; by default `training.data`
    out         folder for checkpoints, metrics, plots and the model; None writes nothing
    validation  validation images; by default part of `data` is held out
    cache       file of the data's fields, written if it does not exist; `memory` computes them
                at the start and keeps them in (GPU) memory; None runs the teacher in every step
    teacher     replaces the teacher of the preset
    resume      continue from the last complete checkpoint in `out`, if there is one
    init        a model, or its name, whose weights are copied; parts of another shape are
                initialised
    tokenizer   a model to train, for example with a custom quantizer. Its config replaces the
                preset's model, and a trained codebook is kept
    extra_loss  a further term of the loss; see `Interpretation` for its input
    callbacks   see `Callback`; called in the first process only
    progress    True for bars in a terminal or notebook, unless `logging` shows the logger
                `strop.training` at level INFO; or a function of the task, the number of images or
                steps done, and their total

    Under `torchrun` the processes share `training.batch`. SIGTERM and SIGINT stop the run after the
    current step and write a checkpoint; before the first step they end the program.
    """
    preset = preset if isinstance(preset, Preset) else load_preset(preset)
    data, validation = (
        os.fspath(each) if isinstance(each, os.PathLike) else each for each in (data, validation)
    )
    data = data if data is not None else preset.training.data or None
    if data is None:
        raise ConfigError("No data was given.", "Name a dataset: --data folder:/photos.")
    if tokenizer is not None:
        check_tokenizer(tokenizer)
        if init is not None or teacher is not None:
            raise ConfigError(
                f"Both a tokenizer and {'a teacher' if init is None else 'init'} were given.",
                "Give one of the two: a tokenizer has its own weights and teacher.",
            )
        preset = replace(preset, model=tokenizer.config)
    folder = Path(out) if out is not None else None
    if resume and folder is None:
        raise ConfigError("There is no run to resume.", "Name its folder with out=.")
    chosen = _device(device)
    workers = distributed.join(chosen)
    # The caller's random generators keep their state; the run has its own.
    devices = [chosen] if chosen.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),
        distributed.only_writer(folder),
        shown(progress, quiet=LOGGER.isEnabledFor(logging.INFO)) as report,
        sound_attention(),
        _Stop() as stop,
    ):
        if preset.training.batch % workers.world:
            raise ConfigError(
                f"training.batch is {preset.training.batch}, which {workers.world} processes "
                "cannot share equally.",
                "Choose a multiple of their number.",
            )
        report = report if workers.first else no_progress
        checkpoint = open_run(folder, resume=resume) if folder is not None else None
        if checkpoint is not None and teacher is not None:
            stored = _stored_preset(checkpoint).model.teacher
            check_same(checkpoint.folder, {"teacher": stored.name}, {"teacher": teacher})
            # The scale of the teacher was measured at the start of the run.
            preset = replace(preset, model=replace(preset.model, teacher=stored))
            teacher = None
        run_data = open_data(
            preset,
            data,
            validation=validation,
            cache=cache,
            teacher=teacher,
            tokenizer=tokenizer,
            workers=workers,
            device=chosen,
            loading_workers=loading_workers,
            progress=report,
        )
        source = init if isinstance(init, Tokenizer | None) else load(init, device="cpu")
        facts = {
            "images": run_data.loader.images,
            "data": run_data.name,
            "data files": run_data.data_digest,
            "teacher weights": run_data.teacher_digest,
            "init": "none" if source is None else of_tensors(source.state_dict())[:DIGITS],
        }
        preset, decoder = run_data.preset, run_data.preset.model.decoder
        if tokenizer is None:
            preset = replace(preset, model=replace(preset.model, decoder=None))
        if checkpoint is not None:
            _check_same(checkpoint, preset, facts)
        torch.manual_seed(preset.training.seed)
        if tokenizer is None:
            tokenizer = Tokenizer(preset.model, teacher_digest=run_data.teacher_digest)
            if source is not None:
                warm_start(tokenizer, source)
        tokenizer.about = {"name": preset.name, "preset": preset.name}
        if decoder is not None and tokenizer.decoder is None:  # for `train_decoder`
            tokenizer.about[ABOUT_WIDTHS] = list(decoder.widths)
        tokenizer.to(chosen).train()
        distributed.copy_from_first(tokenizer.state_dict().values())
        config = StepConfig(preset, workers, extra_loss)
        stepper = Stepper(tokenizer, run_data.loader.field_of, config, device=chosen)
        if checkpoint is not None:
            restore(stepper, checkpoint)
        if folder is not None and workers.first:
            write_json(folder / "run.json", "run", 1, to_dict(preset))
            metrics = MetricsFile(folder / "metrics.jsonl", checkpoint.step if checkpoint else 0)
            callbacks = (metrics, *callbacks)
        run = TrainingRun(
            preset,
            stepper,
            folder,
            checkpoint,
            data=run_data,
            facts=facts,
            callbacks=callbacks if workers.first else (),
            progress=report,
            stop=stop,
        )
        return run.go()


class TrainingRun:
    """A run: what callbacks are given, and its loop.

    step    optimizer steps taken so far
    folder  where the run's files go, None if it writes none
    """

    def __init__(
        self,
        preset: Preset,
        stepper: Stepper,
        folder: Path | None,
        checkpoint: Checkpoint | None,
        *,
        data: RunData,
        facts: Mapping[str, Any],
        callbacks: Sequence[Callback],
        progress: Progress,
        stop: _Stop,
    ) -> None:
        self.preset, self.stepper, self.folder = preset, stepper, folder
        self._data, self._facts, self._callbacks = data, facts, callbacks
        self._progress, self._stop = progress, stop
        self.step, self._before = 0, 0.0  # seconds of training before a resumption
        if checkpoint is not None:
            self.step, self._before = checkpoint.step, checkpoint.about["seconds"]
        # A codebook that was never updated has counts of one.
        untrained = bool((stepper.tokenizer.quantizer.counts == 1).all())
        self._initialise = checkpoint is None and untrained
        self._config, self._workers = stepper.config, stepper.config.workers
        self._metrics: Metrics = {}  # of the last validation
        self._started = time.monotonic()
        self._last_log = (self._started, self.step)

    @property
    def seconds(self) -> float:
        """Seconds of training so far, resumptions included."""
        return self._before + time.monotonic() - self._started

    def go(self) -> Result:
        """Train to the end, or until a signal stops the run."""
        stepper, training = self.stepper, self._config.training
        self._call("on_start")
        task = "training: compiling" if stepper.compiled else "training"
        self._progress(task, self.step, training.steps)
        finished = False
        try:
            batches = self._data.loader.batches(self.step)
            for step in range(self.step, training.steps):
                loaded = next(batches)
                values = to_device(step_values(self._config, step), stepper.device)
                if stepper.steps_done == 0:
                    if self._initialise:
                        stepper.initialise_codebook(loaded)
                    stepper.warm_up(loaded, values)
                    self._stop.listen()
                    self._last_log = (time.monotonic(), step)
                stepper(loaded, values, step)
                self.step = step + 1
                self._after_step()
                if self._must_stop():
                    break
            finished = self.step == training.steps
            if not finished:
                self._checkpoint()
            again = finished and stepper.steps_done == 0  # the run was resumed after its last step
            if again:
                self._validate()
            if finished:
                self._finish(keep=again)
        finally:
            self._call("on_end", finished)
            # In every process: each reads different images.
            if problems := self._data.loader.report():
                warnings.warn(problems, stacklevel=3)
        return Result(stepper.tokenizer.eval(), finished, self.step, self._metrics, self.folder)

    def _after_step(self) -> None:
        step, training = self.step, self._config.training
        last = step == training.steps
        if step % training.log_every == 0 or last:
            self._log()
        pause = time.monotonic()
        if step % training.validate_every == 0 or last:
            self._validate()
        if step % training.checkpoint_every == 0 or last:
            self._checkpoint()
        begun, at = self._last_log
        self._last_log = (begun + time.monotonic() - pause, at)

    def _must_stop(self) -> bool:
        if self._workers.world == 1:
            return self._stop.requested
        # Processes receive signals at different steps. They agree when they log.
        if self.step % self._config.training.log_every:
            return False
        requested = torch.tensor(float(self._stop.requested), device=self.stepper.device)
        return bool(summed(requested).item())

    def _log(self) -> None:
        stepper, step, training = self.stepper, self.step, self._config.training
        # Phase 1 has no targets.
        targets = self._config.phase(step - stepper.counted) > 1
        means = stepper.take_metrics()
        self._check_trouble()
        begun, at = self._last_log
        self._last_log = (time.monotonic(), step)
        if not self._workers.first:
            return
        metrics = {
            "phase": float(self._config.phase(step - 1)),
            **summary(means, targets=targets),
            **codebook_health(stepper.tokenizer.quantizer.counts, training.reseed_below),
            "images_per_second": (step - at)
            * training.batch
            / max(self._last_log[0] - begun, 1e-9),
        }
        self._call("on_log", metrics)
        loss, speed = metrics["loss"], metrics["images_per_second"]
        LOGGER.info("step %d/%d loss %.4f %.0f img/s", step, training.steps, loss, speed)
        text = f"training: phase {metrics['phase']:.0f}  loss {loss:.3f}"
        if self._metrics:
            text += f"  R² {self._metrics['r2_centred']:.3f}"
            text += f"  length {self._metrics['length_mean']:.1f}"
        self._progress(f"{text}  {speed:,.0f} img/s", step, training.steps)

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, hook)(self, *arguments)

    def _check_trouble(self) -> None:
        found = stepper_trouble(self.stepper)
        if found is None:
            return
        step, what = found
        paths = checkpoint_paths(self.folder / "checkpoints") if self.folder else []
        last = f"The last good checkpoint is {paths[0]}." if paths else "There is no checkpoint."
        raise TrainingError(
            f"Training failed at step {step}: {what}. {last}",
            "Lower the learning rate or check the data, and restart from there.",
        )

    def _validate(self) -> None:
        self._check_trouble()
        tokenizer = self.stepper.tokenizer
        if not len(self._data.held_out):
            return
        tokenizer.eval()
        with self.stepper.averaged_weights():
            self._metrics = validate(tokenizer, self._data.held_out)
        tokenizer.train()
        if self._workers.first:
            r2, length = self._metrics["r2_centred"], self._metrics["length_mean"]
            LOGGER.info("step %d held-out R² centred %.4f mean length %.1f", self.step, r2, length)
        self._call("on_validation", self._metrics)

    def _checkpoint(self) -> None:
        self._check_trouble()
        if self.folder is None or not self._workers.first:
            return
        about = {
            "preset": to_dict(self.preset),
            **self._facts,
            "counted": self.stepper.counted,
            "seconds": self.seconds,
        }
        path = write_checkpoint(
            self.folder / "checkpoints",
            state_of(self.stepper),
            self.step,
            about,
            keep=self._config.training.keep_checkpoints,
        )
        self._call("on_checkpoint", path)

    def _finish(self, *, keep: bool) -> None:
        """Finish the model; the first process writes it, its card and the plots.

        With `keep`, an existing model is kept: it may have gained a decoder or another length head.
        """
        stepper, preset, fields = self.stepper, self.preset, self._data.held_out
        if stepper.averaged is not None:
            stepper.use_averaged_weights()
        tokenizer = stepper.tokenizer
        if isinstance(tokenizer.length_head, RateHead) and len(fields):
            encodings = map(tokenizer.eval().analyse_field, fields.split(64))
            calibrate(tokenizer.length_head, measure(tokenizer, encodings, len(fields)))
        name, images = self._data.name, self._data.loader.images
        tokenizer.about |= {
            "data": f"{name} ({images:,} images)",
            "steps": f"{preset.training.steps:,} of {preset.training.batch} images",
            "time": f"{self.seconds / 3600:.2f} h",
            "machine": describe_machine(stepper.device)["device"],
            "metrics": {f"{name}, held out": value for name, value in self._metrics.items()},
            "training": {
                "data": name,
                "images": images,
                "objective": to_dict(preset.objective),
                "curriculum": to_dict(preset.curriculum),
                # Without the spec of the data, which may hold a path of this machine.
                "training": to_dict(replace(preset.training, data="")),
            },
        }
        r2, floor = (self._metrics.get(f"r2_centred{which}", 0) for which in ("", "_mean_field"))
        # The mean field, which needs no tokens, of a few images is made of these images.
        if len(fields) > 3 and not r2 > floor:
            warning = (
                "On held-out images this model explains no more than the mean field does without "
                f"tokens: R² centred is {r2:.3f}, that of the mean field {floor:.3f}."
            )
            tokenizer.about["warning"] = warning
            warnings.warn(f"{warning} Train longer, on more images, or larger.", stacklevel=4)
        if self.folder is not None and self._workers.first:
            if not (keep and (self.folder / "model" / "config.json").is_file()):
                tokenizer.save_pretrained(self.folder / "model")
            lines = read_metrics(self.folder / "metrics.jsonl")
            ends = self._config.curriculum.phase_ends if self._config.has_oracle else ()
            plot_run(lines, ends, self.folder)


def summary(means: Mapping[str, float], *, targets: bool = True) -> Metrics:
    """The logged metrics: moments become standard deviations and a correlation.

    Without `targets`, metrics of target lengths are left out.
    """
    result = {name: value for name, value in means.items() if "_squared" not in name}
    product = result.pop("predicted_times_target")
    variances = {}
    for name in ("predicted_length", "target_length"):
        variances[name] = max(means[f"{name}_squared"] - means[name] ** 2, 0.0)
        result[f"{name}_spread"] = math.sqrt(variances[name])
    if not targets:
        return {name: value for name, value in result.items() if "target" not in name}
    scale = math.sqrt(math.prod(variances.values()))
    together = product - means["predicted_length"] * means["target_length"]
    result["length_target_correlation"] = together / scale if scale > 1e-6 else 0.0
    return result


def codebook_health(counts: Tensor, below: float) -> Metrics:
    """The share of codes in use, by their running counts (N,), and the perplexity of the counts."""
    share = counts.double() / counts.double().sum().clamp(min=1e-12)
    alive = (counts >= below).double().mean()
    return {
        "codes_in_use": alive.item(),
        "codes_perplexity": torch.special.entr(share).sum().exp().item(),
    }


def stepper_trouble(stepper: Stepper) -> tuple[int, str] | None:
    """The first step and term in which the loss failed in any process; None if none did."""
    workers = stepper.config.workers
    rows = torch.zeros(workers.world, len(stepper.trouble), device=stepper.device)
    rows[workers.rank] = stepper.trouble
    failed = [row for row in summed(rows).tolist() if row[0]]
    if not failed:
        return None
    _, step, *terms = min(failed, key=lambda row: row[1])
    limit = stepper.config.training.loss_limit
    for name, value in zip(TERMS, terms, strict=True):
        if not abs(value) <= limit:
            kind = f"above the limit of {limit:g}" if math.isfinite(value) else "not finite"
            return int(step), f"the {name} term is {value:g}, {kind}"
    names = [n for n, bad in zip(stepper.parameters, stepper.unsound.tolist(), strict=True) if bad]
    whose = f"that of {names[0]} and of {len(names) - 1} other parameters" if names else "its norm"
    return int(step), f"the gradient is not finite in {MOST_SPOILT} steps in a row, finally {whose}"


def warm_start(tokenizer: Tokenizer, source: Tokenizer) -> set[str]:
    """Copy the tensors of `source` that fit into `tokenizer`, and return their names."""
    target, given = tokenizer.state_dict(), source.state_dict()
    fits = {name for name in target if name in given and given[name].shape == target[name].shape}
    # Codes only fit the tokens they were learned from, so the quantizer is copied as a whole.
    if any(name.startswith("quantizer.") for name in (target.keys() | given.keys()) - fits):
        fits -= {name for name in fits if name.startswith("quantizer.")}
    sizes = {name: list(value.shape) for name, value in given.items()}
    unfit = [
        f"{name} {list(value.shape)}, given as {sizes.get(name, 'nothing')}"
        for name, value in target.items()
        if name not in fits
    ]
    which = "; ".join(unfit[:8]) + (f"; and {len(unfit) - 8} more" if len(unfit) > 8 else "")
    if not any(name.startswith("generator.layers") for name in fits):
        raise TrainingError(
            f"Nothing of the given model fits this preset: {which}.",
            "Start from a model of the same width, or omit --init.",
        )
    if unfit:
        warnings.warn(f"Weights that are not copied but newly initialised: {which}.", stacklevel=3)
    tokenizer.load_state_dict({name: given[name] for name in fits}, strict=False)
    return fits


def _device(device: str | torch.device | None) -> torch.device:
    chosen = torch.device(choose_device(device))
    if chosen.type != "cuda" or chosen.index is not None:
        return chosen
    if local := os.environ.get("LOCAL_RANK"):
        torch.cuda.set_device(int(local))
    return torch.device("cuda", torch.cuda.current_device())


def _stored_preset(checkpoint: Checkpoint) -> Preset:
    # As a `Preset`, so that settings added since the run have their defaults.
    return from_dict(Preset, checkpoint.about["preset"], "checkpoint")


def _check_same(checkpoint: Checkpoint, preset: Preset, now: Mapping[str, Any]) -> None:
    """Refuse to resume a run whose settings, data, teacher or first weights have changed."""
    # Older checkpoints lack some facts, and a digest may be unknown now.
    before = {name: checkpoint.about.get(name) or value for name, value in now.items()}
    now = {name: value or before[name] for name, value in now.items()}
    check_same(
        checkpoint.folder,
        {**flatten(to_dict(_stored_preset(checkpoint))), **before},
        {**flatten(to_dict(preset)), **now},
        MAY_CHANGE,
    )


class _Stop(ExitStack):
    """Records SIGTERM and SIGINT from `listen` on, so that the loop can stop between two steps."""

    requested = False

    def listen(self) -> None:
        """Record signals from now on."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self.callback(signal.signal, number, signal.signal(number, self._note))

    def _note(self, number: int, frame: object) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second time, stop at once
        self.requested = True
