"""Distil frozen networks into a small vision transformer, which loads as a teacher.

    python research/distil/distil.py --from dinov3-b --from /nets/convnext=0.5 \
        --data folder:/photos --out teachers/mine

The student learns to predict the networks' fields of random views. The networks see each view at
the largest of the student's sizes, the student at all of them. The networks run in every step, or
with `--views` once before the first step. All randomness is a function of seed and step, so a
resumed run continues exactly.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from card import save_distilled
from images import ImagePool, ViewCache, cache_views, full_batches, read_images, resized
from inherit import check_inheritance, fit_heads, inherit
from networks import load_network
from strop.cli.console import progress_bars
from strop.data.record import Dataset
from strop.device import choose_device, describe_machine, to_device
from strop.errors import ConfigError, StropError, TrainingError
from strop.files import PathLike
from strop.metrics import effective_rank
from strop.model.teacher import PIXELS_PER_LOCATION, Teacher
from strop.progress import Progress, no_progress
from strop.random import seeded
from strop.recorded import Recorded, materialise
from strop.training import draws
from strop.training.callbacks import MetricsFile
from strop.training.field_cache import compiled_teacher
from strop.training.forward import averaging_share
from strop.training.run_checkpoint import (
    Checkpoint,
    check_same,
    checkpoint_paths,
    open_run,
    write_checkpoint,
)
from strop.training.run_data import check_held_out, data_name
from strop.training.step import follow
from strop.training.views import NUMBERS, random_views
from student import Student, Target, coarser, distortion, grouped, term_names, terms

CHECKPOINT = "distillation-checkpoint"
"""The format of the checkpoints."""

_TARGET_IMAGES = 1024  # means and standard deviations of targets are measured on
_INHERIT_IMAGES = 2048  # inherited weights are fitted on, where there are as many
_BETAS = (0.9, 0.98)
_CLIP = 1.0
_SPANS = 50  # weights are averaged over about a fiftieth of the steps so far
_KEPT_CHECKPOINTS = 2
_OPTIMIZER = ("step", "exp_avg", "exp_avg_sq")
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class DistilConfig:
    """Settings of a distillation.

    student         architecture: `tiny`, `dinov3-s`, `dinov3-b` or `dinov3-l`
    sizes           image sizes of the student in pixels; it sees each view at all of them
    steps, batch    optimizer steps, and views per step
    learning_rate   peak, reached after `warmup` (a share of the run), then decayed along a cosine
    weight_decay    of AdamW, on matrices only
    class_weight    weight of the class token's terms relative to the patches'
    geometry        weight of the term that keeps the cosines between patches of the first network
    grouping        if above 0, the fields of the other networks are averaged over locations that
                    are similar for the first network: a softmax of its cosines at this temperature
    inherit         initialise the student from the layers of the first network, by least squares
    views           views per image, computed with their fields before the first step; 0 for new
                    views in every step
    smallest_crop   smallest share of an image's area in a view
    held_out        number of held-out images
    seed            of everything random
    log_every       steps between lines of the log
    validate_every  steps between validations, each with a checkpoint
    """

    student: str = "tiny"
    sizes: tuple[int, ...] = (128, 256)
    steps: int = 4000
    batch: int = 256
    learning_rate: float = 1.5e-3
    warmup: float = 0.05
    weight_decay: float = 0.05
    class_weight: float = 0.5
    geometry: float = 1.0
    grouping: float = 0.0
    inherit: bool = False
    views: int = 0
    smallest_crop: float = 0.35
    held_out: int = 256
    seed: int = 0
    log_every: int = 50
    validate_every: int = 1000

    def __post_init__(self) -> None:
        wrong = [size for size in self.sizes if size < 16 or size % PIXELS_PER_LOCATION]
        if wrong or not self.sizes:
            raise ConfigError(
                f"sizes are {', '.join(map(str, self.sizes)) or 'none'}.",
                f"Give multiples of {PIXELS_PER_LOCATION}, such as 128,256.",
            )
        for name in ("steps", "batch", "log_every", "validate_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Give at least 1.")
        for name in ("views", "grouping", "geometry"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Give 0 or more.")
        for name in ("learning_rate", "smallest_crop"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Give more than 0, up to 1.")


def distil(
    networks: Mapping[str, float] | Sequence[str],
    data: Sequence[str | Dataset | Tensor],
    *,
    out: PathLike,
    config: DistilConfig | None = None,
    shares: Sequence[float] | None = None,
    validation: str | Dataset | Tensor | None = None,
    name: str | None = None,
    notes: Sequence[str] = (),
    limits: Sequence[str] = (),
    dtype: Literal["bf16", "fp32"] = "bf16",
    resume: bool = False,
    device: str | torch.device | None = None,
    workers: int = 0,
    progress: Progress = no_progress,
) -> dict[str, float]:
    """Train a student on the fields of frozen networks and write it to the folder `out`.

    networks    names of networks (see `load_network`), optionally with weights; the first one
                also provides the geometry
    data        specs, datasets, or uint8 images (n, 3, H, H) of the largest size
    shares      share of a batch for each of `data`; by default proportional to its size
    validation  held-out images; by default some of `data`
    name        title of the model card, by default the folder's name
    notes       lines of the card: sources of networks and data, with their licences
    limits      sentences of the card: what the teacher is not good for
    dtype       of the saved weights

    Returns the metrics on the held-out images, which are also in the card. On a GPU everything but
    the losses runs compiled in bf16, and steps are replayed from a CUDA graph.
    """
    config = config or DistilConfig()
    weights = dict(networks) if isinstance(networks, Mapping) else dict.fromkeys(networks, 1.0)
    _check(weights, data, shares)
    for each in data:
        check_held_out(each, validation)
    folder, where = Path(out), torch.device(choose_device(device))
    checkpoint = open_run(folder, resume=resume, kind=CHECKPOINT)
    progress("loading networks", 0, len(weights))
    loaded = [load_network(each).to(where) for each in weights]
    pool = read_images(
        data,
        size=max(config.sizes),
        batch=config.batch,
        held_out=config.held_out,
        shares=shares,
        validation=validation,
        device=where,
        workers=workers,
        progress=progress,
    )
    trainer = Trainer(config, weights, loaded, pool, folder, where, progress)
    if checkpoint is not None:
        trainer.restore(checkpoint)
    metrics = trainer.run()
    student = trainer.averaged.backbone
    parameters = sum(parameter.numel() for parameter in student.parameters())
    facts = {
        "name": name or folder.resolve().name,
        "architecture": f"{config.student}, {parameters / 1e6:.2f} M parameters",
        "sizes": ", ".join(f"{size} px" for size in config.sizes),
        "data": "; ".join(
            f"{data_name(each)} ({share:.0%} of the views)"
            for each, share in zip(data, pool.shares, strict=True)
        ),
        "images": f"{len(pool.images):,}, and {len(pool.held_out):,} held out",
        "steps": f"{trainer.step:,} of {config.batch} views",
        "time": f"{trainer.seconds / 60:.1f} min",
        "machine": describe_machine(where)["device"],
        "sources": [{"name": Path(each).name, "weight": weights[each]} for each in weights],
        "notes": list(notes),
        "limits": list(limits),
        "metrics": metrics,
        "settings": asdict(config),
    }
    save_distilled(student, folder, facts, _DTYPES[dtype])
    return metrics


class Trainer:
    """The state of a distillation, and its steps."""

    def __init__(
        self,
        config: DistilConfig,
        weights: Mapping[str, float],
        networks: Sequence[Teacher],
        pool: ImagePool,
        folder: Path,
        device: torch.device,
        progress: Progress,
    ) -> None:
        self.config, self.pool, self.folder = config, pool, folder
        self.device, self.progress = device, progress
        self.compiled = device.type == "cuda"
        self.settings = {
            **asdict(config),
            "sizes": list(config.sizes),
            "sources": dict(weights),
            "images": len(pool.images),
            "shares": list(pool.shares),
        }
        with seeded(config.seed):
            self.student = Student(
                config.student, [each.width for each in networks], size=max(config.sizes)
            ).to(device)
        self.first = networks[0]
        if config.inherit:
            check_inheritance(self.student, self.first)
        self.networks = [compiled_teacher(each, self.compiled, *config.sizes) for each in networks]
        self.targets = self._measure_targets([Path(name).name for name in weights])
        self.cache: ViewCache | None = None
        self.weights = torch.tensor(
            [weight * part for weight in weights.values() for part in (1.0, config.class_weight)]
            + [config.geometry],
            device=device,
        )
        self.names = term_names(self.targets)
        self.terms = torch.compile(terms, dynamic=False) if self.compiled else terms
        self.averaged = copy.deepcopy(self.student).requires_grad_(False)
        self.parameters = {
            name: parameter
            for name, parameter in self.student.named_parameters()
            if parameter.requires_grad
        }
        self.rate = torch.zeros((), device=device)  # a tensor, because CUDA graphs replay tensors
        self.optimizer = torch.optim.AdamW(
            [
                {
                    "params": [p for p in self.parameters.values() if (p.ndim > 1) == decays],
                    "weight_decay": config.weight_decay if decays else 0.0,
                }
                for decays in (True, False)
            ],
            lr=self.rate,
            betas=_BETAS,
            fused=True,
            capturable=self.compiled,
        )
        materialise(self.optimizer)
        self.update = Recorded(self._update, device)
        self.step, self.before = 0, 0.0
        self.started = time.monotonic()
        self.metrics: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Training time so far, including the time before a resumption."""
        return self.before + time.monotonic() - self.started

    def run(self) -> dict[str, float]:
        """Take all remaining steps; the metrics at the end."""
        config = self.config
        log = MetricsFile(self.folder / "metrics.jsonl", self.step)
        if config.inherit and not self.step:
            log.add("inherited", 0, self._inherit())
        if config.views:
            self.cache = self._cache_views()  # after inheriting, which needs more memory
        if self.compiled:
            self.progress("compiling", 0, 1)
            with self.update.aside():
                self._losses(*self._draw()).sum().backward()
                self.optimizer.zero_grad(set_to_none=True)
        totals, counted = torch.zeros(len(self.names), device=self.device), 0
        self.started = time.monotonic()
        since = self.seconds
        while self.step < config.steps:
            totals += self._take_step()
            counted += 1
            last = self.step == config.steps
            if self.step % config.log_every == 0 or last:
                means = dict(zip(self.names, (totals / counted).tolist(), strict=True))
                self._check_finite("term", means)
                rate = counted * config.batch / max(self.seconds - since, 1e-9)
                log.add("training", self.step, {**means, "images_per_second": rate})
                self.progress(f"training: {rate:,.0f} img/s", self.step, config.steps)
                totals.zero_()
                counted, since = 0, self.seconds
            if self.step % config.validate_every == 0 or last:
                self._check_finite("tensor", self._state())  # before it is saved
                self.metrics = self.validate()
                log.add("validation", self.step, self.metrics)
                self._save()
                since = self.seconds
        return self.metrics or self.validate()  # resumed after its last step

    def _take_step(self) -> Tensor:
        """One step; returns its terms, detached, valid until the next step."""
        share = averaging_share(self.step, _SPANS)
        values = torch.tensor([learning_rate(self.config, self.step / self.config.steps), share])
        losses = self.update(to_device(values, self.device), *self._draw())
        self.step += 1
        return losses

    def _update(self, values: Tensor, *batch: Tensor) -> Tensor:
        """Update the weights and their average; `values` are learning rate and averaging share."""
        self.optimizer.zero_grad(set_to_none=True)
        losses = self._losses(*batch)
        (self.weights * losses).sum().backward()
        with torch.no_grad():
            torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), _CLIP)
            self.rate.copy_(values[0])
            self.optimizer.step()
            follow(self.averaged.parameters(), self.student.parameters(), values[1])
        return losses.detach()

    def _losses(self, *batch: Tensor) -> Tensor:
        """The terms of a batch, averaged over the sizes."""
        view, fields = self._views(*batch)
        with self._autocast():
            return torch.stack(
                [
                    self.terms(self.student, self.targets, resized(view, size), fields)
                    for size in self.config.sizes
                ]
            ).mean(0)

    def _inherit(self) -> dict[str, float]:
        """Initialise the student from the first network; the explained variance, and the time."""
        self.progress("inheriting", 0, 1)
        started = time.monotonic()
        images = list(self._sample("inherited", _INHERIT_IMAGES))
        held_out = self.pool.held_out[: self.config.batch].float()
        share = inherit(self.student, self.first, images, held_out)
        fit_heads(self.student, self.targets, images, map(self._fields, images))
        self.averaged.load_state_dict(self.student.state_dict())
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # inheriting takes several times the memory of a step
        return {"share of the stream": share, "seconds": time.monotonic() - started}

    def _draw(self) -> tuple[Tensor, Tensor]:
        """The images of this step (their rows, with a cache) and the random numbers of views."""
        config, step = self.config, self.step
        rows = self.pool.rows(config.seed, "rows", step, config.batch)
        numbers = 2 if self.cache else NUMBERS
        uniform = draws.uniform(config.seed, "views", step, config.batch, numbers)
        images = to_device(rows, self.device) if self.cache else self.pool.batch(rows, self.device)
        return images, to_device(uniform, self.device)

    def _views(self, images: Tensor, uniform: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The views (B, 3, H, H) from 0 to 255, and their fields by every network."""
        if self.cache:
            return self.cache.batch(images, uniform)
        view = random_views(images, uniform, smallest=self.config.smallest_crop)
        return view, self._fields(view)

    def _cache_views(self) -> ViewCache:
        config = self.config
        return cache_views(
            self.pool,
            self._fields,
            each=config.views,
            batch=config.batch,
            seed=config.seed,
            smallest=config.smallest_crop,
            device=self.device,
            progress=self.progress,
        )

    @torch.no_grad()
    def _fields(self, view: Tensor) -> list[Tensor]:
        with self._autocast():
            first, *others = [network(view) for network in self.networks]
        if self.config.grouping:
            others = [grouped(field, first, self.config.grouping) for field in others]
        return [first, *others]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.compiled)

    def _sample(self, purpose: str, most: int) -> Iterator[Tensor]:
        """Full batches (B, 3, H, H) of unchanged images: `most`, or as many as there are."""
        batch = self.config.batch
        count = max(min(most, len(self.pool.images)) // batch, 1) * batch
        for rows in self.pool.rows(self.config.seed, purpose, 0, count).split(batch):
            yield self.pool.batch(rows, self.device).float()

    @torch.no_grad()
    def _measure_targets(self, labels: Sequence[str]) -> list[Target]:
        """The targets, standardised over a sample of the images."""
        found: list[list[Tensor]] = [[] for _ in labels]
        for view in self._sample("sample", _TARGET_IMAGES):
            for fields, field in zip(found, self._fields(view), strict=True):
                fields.append(field.float())
        return [Target(label, fields) for label, fields in zip(labels, found, strict=True)]

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Metrics of the averaged weights on held-out images, at each size.

        Cosine and `r2_centred` of every prediction, the geometry kept, and the effective rank.
        """
        student, sums = self.averaged, _Sums()
        held_out = self.pool.held_out
        for rows in full_batches(len(held_out), self.config.batch):
            images = held_out[to_device(rows, self.device)]
            fields = self._fields(images.float())
            for size in self.config.sizes:
                with self._autocast():
                    token, own = student(resized(images, size))
                    for number, (target, field) in enumerate(
                        zip(self.targets, fields, strict=True)
                    ):
                        field = field.float()
                        where = f"{target.label}, {size} px"
                        patches = target.patches(coarser(field, own))
                        sums.add(f"{where}, patches", student.patch_heads[number](own), patches)
                        pooled = target.pooled(field)
                        sums.add(f"{where}, class", student.class_heads[number](token), pooled)
                wanted = coarser(fields[0].float(), own)
                sums.mean(f"geometry kept, {size} px", 1 - distortion(own, wanted).item())
                sums.mean(f"effective rank, {size} px", effective_rank(own.float()))
        return sums.metrics()

    def _check_finite(self, kind: str, values: Mapping[str, float | Tensor]) -> None:
        bad = [name for name, each in values.items() if not torch.as_tensor(each).isfinite().all()]
        if bad:
            paths = checkpoint_paths(self.folder / "checkpoints")
            last = f" The last good checkpoint is {paths[0]}." if paths else ""
            raise TrainingError(
                f"The distillation failed by step {self.step}: the {kind} {bad[0]!r} is not finite."
                f"{last}",
                "Lower the learning rate.",
            )

    def _state(self) -> dict[str, Tensor]:
        """Every tensor that steps change, by name, not copied."""
        state: dict[str, Tensor] = {f"student.{n}": value for n, value in self.parameters.items()}
        state |= {f"averaged.{name}": value for name, value in self.averaged.named_parameters()}
        for name, parameter in self.parameters.items():
            kept = self.optimizer.state[parameter]
            state |= {f"optimizer.{name}.{part}": kept[part] for part in _OPTIMIZER}
        return state

    def _save(self) -> None:
        write_checkpoint(
            self.folder / "checkpoints",
            self._state(),
            self.step,
            {"settings": self.settings, "seconds": self.seconds},
            keep=_KEPT_CHECKPOINTS,
            kind=CHECKPOINT,
        )

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of the same settings."""
        check_same(self.folder, checkpoint.about["settings"], self.settings)
        for name, kept in self._state().items():
            kept.copy_(checkpoint.tensors[name])
        self.step, self.before = checkpoint.step, checkpoint.about["seconds"]


class _Sums:
    """Residuals, totals and cosines, accumulated over batches."""

    def __init__(self) -> None:
        self.residual: dict[str, Tensor] = {}
        self.total: dict[str, Tensor] = {}
        self.means: dict[str, list[float]] = {}

    def add(self, name: str, predicted: Tensor, target: Tensor) -> None:
        """Add a prediction (..., d) of standardised features."""
        predicted = predicted.float()
        for sums, value in (
            (self.residual, (predicted - target).double().square().sum()),
            (self.total, target.double().square().sum()),
        ):
            sums[name] = sums.get(name, 0) + value
        cosine = torch.nn.functional.cosine_similarity(predicted, target, dim=-1)
        self.mean(f"{name}, cosine", cosine.double().mean().item())

    def mean(self, name: str, value: float) -> None:
        """Add a number that is averaged over batches."""
        self.means.setdefault(name, []).append(value)

    def metrics(self) -> dict[str, float]:
        found = {
            f"{name}, r2_centred": (1 - self.residual[name] / self.total[name]).item()
            for name in self.residual
        }
        averaged = {name: sum(each) / len(each) for name, each in self.means.items()}
        return dict(sorted({**found, **averaged}.items()))


def learning_rate(config: DistilConfig, progress: float) -> float:
    """The learning rate after a share `progress` of the run: linear warm-up, then a cosine."""
    if progress < config.warmup:
        # Not 0 at the start, which would waste the first step.
        return config.learning_rate * max(progress / config.warmup, 0.005)
    rest = (progress - config.warmup) / (1 - config.warmup)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * min(rest, 1.0)))


def _check(
    weights: Mapping[str, float], data: Sequence[object], shares: Sequence[float] | None
) -> None:
    if not weights:
        raise TrainingError("There is no network to distil from.", "Name one with --from.")
    for name, weight in weights.items():
        if not (weight > 0 and math.isfinite(weight)):
            raise ConfigError(f"The weight of {name} is {weight}.", "Give a number above 0.")
    labels = [Path(name).name for name in weights]
    if len(set(labels)) < len(labels):
        raise ConfigError(
            f"Two networks are called {max(labels, key=labels.count)!r}.",
            "Rename one of the folders.",
        )
    if not data:
        raise TrainingError("There are no images to train on.", "Name some with --data.")
    if shares and (len(shares) != len(data) or not all(share > 0 for share in shares)):
        raise ConfigError(
            f"The shares of {len(data)} datasets are {', '.join(f'{s:g}' for s in shares)}.",
            "Give one number above 0 for each --data, in the same order.",
        )


def parse_network(text: str) -> tuple[str, float]:
    """`NAME=WEIGHT` or `NAME`; a name may contain an equals sign."""
    name, _, weight = text.rpartition("=")
    try:
        return (name, float(weight)) if name else (text, 1.0)
    except ValueError:
        return text, 1.0


def parse_sizes(text: str) -> tuple[int, ...]:
    """Comma-separated image sizes."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--sizes is {text!r}.", "Give whole numbers, such as 128,256.")
    return tuple(map(int, parts))


def main(arguments: Sequence[str] | None = None) -> None:
    default = DistilConfig()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--from", dest="networks", action="append", required=True, help="NAME or NAME=WEIGHT")
    add("--data", action="append", required=True, help="spec of images to train on, repeatable")
    add("--out", required=True, help="folder for the new teacher")
    add("--share", dest="shares", action="append", type=float, help="share of a batch per --data")
    add("--val", dest="validation", help="spec of held-out images; by default some of --data")
    add("--student", default=default.student, help="architecture")
    add("--sizes", default="128,256", help="image sizes in pixels")
    add("--steps", type=int, default=default.steps)
    add("--batch", type=int, default=default.batch, help="views per step")
    add("--lr", type=float, default=default.learning_rate)
    add("--views", type=int, default=default.views, help="cached views per image; 0 for new views")
    add("--geometry", type=float, default=default.geometry, help="weight of the geometry term")
    add("--grouping", type=float, default=default.grouping, help="temperature, such as 0.1")
    add("--inherit", action="store_true", help="initialise from the first network's layers")
    add("--name", help="title of the model card")
    add("--note", dest="notes", action="append", default=[], help="line of the card, repeatable")
    add("--limit", dest="limits", action="append", default=[], help="sentence of the card")
    add("--fp32", action="store_true", help="save fp32 weights instead of bf16")
    add("--resume", action="store_true", help="continue from the last checkpoint in --out")
    add("--workers", type=int, default=2, help="processes that read images")
    add("--seed", type=int, default=default.seed)
    add("--device")
    options = parser.parse_args(arguments)
    config = DistilConfig(
        student=options.student,
        sizes=parse_sizes(options.sizes),
        steps=options.steps,
        batch=options.batch,
        learning_rate=options.lr,
        geometry=options.geometry,
        grouping=options.grouping,
        inherit=options.inherit,
        views=options.views,
        seed=options.seed,
    )
    with progress_bars() as bars:
        metrics = distil(
            dict(map(parse_network, options.networks)),
            options.data,
            out=options.out,
            config=config,
            shares=options.shares,
            validation=options.validation,
            name=options.name,
            notes=options.notes,
            limits=options.limits,
            dtype="fp32" if options.fp32 else "bf16",
            resume=options.resume,
            device=options.device,
            workers=options.workers,
            progress=bars,
        )
    for metric, value in metrics.items():
        print(f"{metric}  {value:.4f}")
    print(f"The teacher is in {options.out}")


if __name__ == "__main__":
    try:
        main()
    except StropError as error:
        sys.exit(f"error: {error}")
