"""Distillation: a small vision transformer learns what frozen networks see.

The networks run on the very views that the student gets, at the largest of its sizes: on new ones
in every step, so that no image is seen twice alike, or on a bank of them made before the first.
Everything random is a pure function of the seed and the step.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from strop.data.record import Dataset
from strop.errors import ConfigError, TrainingError
from strop.files import PathLike
from strop.metrics import effective_rank
from strop.model.teacher import PIXELS_PER_LOCATION, Teacher
from strop.random import seeded
from strop.training import draws
from strop.training.averaging import averaging_share, follow
from strop.training.bank import Bank, make_bank
from strop.training.callbacks import MetricsFile
from strop.training.checkpoint import (
    DISTILLATION,
    Checkpoint,
    check_same,
    checkpoint_paths,
    open_run,
    write_checkpoint,
)
from strop.training.distilled import save_distilled
from strop.training.fields import check_held_out, data_name
from strop.training.inherit import check_inheritance, fit_heads, inherit
from strop.training.loop import machine
from strop.training.networks import load_network
from strop.training.pool import Pool, Watch, read_pool, whole_batches
from strop.training.recorded import Recorded, materialise
from strop.training.sources import compiled_teacher, to_device
from strop.training.student import (
    Student,
    Target,
    coarser,
    distortion,
    grouped,
    term_names,
    terms,
)
from strop.training.views import NUMBERS, random_views, resized

_SAMPLE = 1024  # views that means and spreads are measured on
_INHERITED = 2048  # images that the first weights are fitted on, where there are as many
_BETAS = (0.9, 0.98)
_CLIP = 1.0
_SPANS = 50  # weights are averaged over about a fiftieth of the steps so far
_KEPT = 2  # checkpoints
_OPTIMIZER = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Settings of a distillation.

    student         an architecture: `tiny`, `dinov3-s`, `dinov3-b`, `dinov3-l`
    sizes           pixels of the student's images; every view is seen at all of them
    steps, batch    optimizer steps, and views in each
    minutes         if given, the run ends after that time instead, its schedule following the
                    clock; it is then not repeatable to the bit
    learning_rate   peak: reached after `warmup`, a share of the run, then lowered along a cosine
    weight_decay    of AdamW, on matrices alone
    class_weight    of the class token's terms beside the patches'
    geometry        weight of the term that keeps the student's cosines between patches those of
                    the first network
    grouping        if above 0, the fields of all networks but the first are averaged over locations
                    that the first holds alike, by a softmax of its cosines over this temperature
    inherit         whether the student starts from the first network's own layers, fitted to its
                    width by least squares, instead of from noise
    views           of each image, made and looked at by the networks before the first step, which
                    then costs the student's part alone; 0 for new ones in every step
    smallest_crop   share of an image's area that a view shows at least
    held_out        images kept from training, to measure on
    seed            of everything random
    log_every       steps between lines of the log
    validate_every  steps between looks at the held-out images, each with a checkpoint
    """

    student: str = "tiny"
    sizes: tuple[int, ...] = (128, 256)
    steps: int = 4000
    batch: int = 256
    minutes: float | None = None
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
                f"The sizes are {', '.join(map(str, self.sizes)) or 'none'}.",
                f"Give multiples of {PIXELS_PER_LOCATION}, such as 128,256.",
            )
        for name in ("steps", "batch", "log_every", "validate_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Give at least 1.")
        for name in ("views", "grouping"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Give 0 or more.")
        for name in ("learning_rate", "smallest_crop"):
            if not 0 < getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}.", "Give more than 0, up to 1.")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"minutes is {self.minutes}.", "Give a number above 0.")


def distill(
    sources: Mapping[str, float] | Sequence[str],
    data: Sequence[str | Dataset | Tensor],
    *,
    out: PathLike,
    config: DistillConfig | None = None,
    shares: Sequence[float] | None = None,
    validation: str | Dataset | Tensor | None = None,
    name: str | None = None,
    notes: Sequence[str] = (),
    limits: Sequence[str] = (),
    dtype: Literal["bf16", "fp32"] = "bf16",
    resume: bool = False,
    device: str | torch.device | None = None,
    loading_workers: int = 0,
    watch: Watch | None = None,
) -> dict[str, float]:
    """Train a student on the features of frozen networks and write it to the folder `out`.

    sources     names of networks (see `load_network`), with weights if they differ; the first
                also lends the geometry of its field
    data        specs, datasets, or uint8 images (n, 3, H, H) of the largest size
    shares      how much of a batch each of `data` makes up; by default as many as it has images
    validation  images to measure on; without it some of `data` are kept for that
    name        the title of the card, by default the folder's
    notes       lines for the card: where sources and data come from, and their licences
    limits      sentences for the card: what the teacher is not good for
    dtype       of the weights in the folder

    Returns the metrics on the held-out images, which are also in the card. On a GPU all but the
    losses runs in bf16, compiled, and whole steps are replayed from a recording.
    """
    config = config or DistillConfig()
    watch = watch or (lambda share, text: None)
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    weights = dict(sources) if isinstance(sources, Mapping) else dict.fromkeys(sources, 1.0)
    _check(weights, data, shares)
    for each in data:
        check_held_out(each, validation)
    folder = Path(out)
    checkpoint = open_run(folder, resume=resume, kind=DISTILLATION)
    watch(0, "loading networks")
    networks = [load_network(each).to(chosen) for each in weights]
    pool = read_pool(
        data,
        size=max(config.sizes),
        batch=config.batch,
        held_out=config.held_out,
        shares=shares,
        validation=validation,
        device=chosen,
        loading_workers=loading_workers,
        watch=watch,
    )
    run = _Run(config, weights, networks, pool, folder, chosen, watch)
    if checkpoint is not None:
        run.restore(checkpoint)
    metrics = run.go()
    facts = {
        "name": name or folder.resolve().name,
        "architecture": f"{config.student}, {_millions(run.averaged.backbone)} M parameters",
        "sizes": ", ".join(f"{size} px" for size in config.sizes),
        "data": "; ".join(
            f"{data_name(each)} ({share:.0%} of the views)"
            for each, share in zip(data, pool.shares, strict=True)
        ),
        "images": f"{len(pool.images):,}, and {len(pool.held_out):,} held out",
        "steps": f"{run.step:,} of {config.batch} views",
        "time": f"{run.seconds / 60:.1f} min",
        "machine": machine(chosen),
        "sources": [{"name": _label(each), "weight": weights[each]} for each in weights],
        "notes": list(notes),
        "limits": list(limits),
        "metrics": metrics,
        "settings": asdict(config),
    }
    save_distilled(run.averaged.backbone, folder, facts, _DTYPES[dtype])
    return metrics


_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class _Run:
    """Everything a run changes, and the steps."""

    def __init__(
        self,
        config: DistillConfig,
        weights: Mapping[str, float],
        networks: Sequence[Teacher],
        pool: Pool,
        folder: Path,
        device: torch.device,
        watch: Watch,
    ) -> None:
        self.config, self.pool, self.folder = config, pool, folder
        self.device, self.watch = device, watch
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
        self.networks = [compiled_teacher(each, self.compiled) for each in networks]
        watch(0, "measuring the networks' features")
        self.targets = self._measure(weights)
        self.bank: Bank | None = None
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
        self.rate = torch.zeros((), device=device)  # a tensor, for a recording holds no other
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
        self.begun = time.monotonic()
        self.metrics: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """Of training so far, resumptions included."""
        return self.before + time.monotonic() - self.begun

    @property
    def progress(self) -> float:
        """The share of the run that is done, by steps or by the clock."""
        if self.config.minutes is None:
            return self.step / self.config.steps
        return self.seconds / (60 * self.config.minutes)

    def go(self) -> dict[str, float]:
        """Take all steps that are left; the metrics at the end."""
        config = self.config
        log = MetricsFile(self.folder / "metrics.jsonl", self.step)
        if config.inherit and not self.step:
            log.add("inherited", 0, self._inherit())
        if config.views:
            self.bank = self._bank()  # now, because it takes what memory is free
        if self.compiled:
            self.watch(0, "compiling")
            with self.update.aside():
                self._losses(*self._drawn()).sum().backward()
                self.optimizer.zero_grad(set_to_none=True)
        totals, counted = torch.zeros(len(self.names), device=self.device), 0
        self.begun = time.monotonic()
        since = self.seconds
        last = self.progress >= 1
        while not last:
            totals += self._take(self.progress)
            counted += 1
            last = self.progress >= 1  # asked once a step: the clock goes on
            if self.step % config.log_every == 0 or last:
                means = dict(zip(self.names, (totals / counted).tolist(), strict=True))
                self._check_finite("term", means)
                rate = counted * config.batch / max(self.seconds - since, 1e-9)
                log.add("training", self.step, {**means, "images_per_second": rate})
                self.watch(min(self.progress, 1), self._told(means, rate))
                totals.zero_()
                counted, since = 0, self.seconds
            if self.step % config.validate_every == 0 or last:
                self._check_finite("tensor", self._state())  # it is about to be kept
                self.metrics = self.validate()
                log.add("validation", self.step, self.metrics)
                self._save()
                since = self.seconds
        return self.metrics or self.validate()  # resumed after its last step

    def _take(self, progress: float) -> Tensor:
        """One step; its terms, detached, until the next."""
        share = averaging_share(self.step, _SPANS)
        values = torch.tensor([learning_rate(self.config, progress), share])
        off = self.update(to_device(values, self.device), *self._drawn())
        self.step += 1
        return off

    def _update(self, values: Tensor, *drawn: Tensor) -> Tensor:
        """Move the weights, at a rate, and their average, by a share: the two `values`."""
        self.optimizer.zero_grad(set_to_none=True)
        off = self._losses(*drawn)
        (self.weights * off).sum().backward()
        with torch.no_grad():
            torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), _CLIP)
            self.rate.copy_(values[0])
            self.optimizer.step()
            follow(self.averaged.parameters(), self.student.parameters(), values[1])
        return off.detach()

    def _losses(self, *drawn: Tensor) -> Tensor:
        """The terms of the views that were drawn, averaged over the sizes."""
        view, fields = self._looked_at(*drawn)
        with self._autocast():
            return torch.stack(
                [
                    self.terms(self.student, self.targets, resized(view, size), fields)
                    for size in self.config.sizes
                ]
            ).mean(0)

    def _inherit(self) -> dict[str, float]:
        """Have the student start from the first network's layers; how much of them it has."""
        self.watch(0, "inheriting")
        began = time.monotonic()
        images = list(self._sample("inherited", _INHERITED))
        held_out = self.pool.held_out[: self.config.batch].float()
        share = inherit(self.student, self.first, images, held_out)
        fit_heads(self.student, self.targets, images, map(self._fields, images))
        self.averaged.load_state_dict(self.student.state_dict())
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what it took is a multiple of what a step takes
        return {"share of the stream": share, "seconds": time.monotonic() - began}

    def _drawn(self) -> tuple[Tensor, Tensor]:
        """This step's images, or their rows if there is a bank, and the chance for its views."""
        config, step = self.config, self.step
        rows = self.pool.rows(config.seed, "rows", step, config.batch)
        chance = 2 if self.bank else NUMBERS
        uniform = draws.uniform(config.seed, "views", step, config.batch, chance)
        images = to_device(rows, self.device) if self.bank else self.pool.batch(rows, self.device)
        return images, to_device(uniform, self.device)

    def _looked_at(self, images: Tensor, uniform: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The views, (B, 3, H, H) from 0 to 255, and what each network makes of them."""
        if self.bank:
            return self.bank.batch(images, uniform)
        view = random_views(images, uniform, smallest=self.config.smallest_crop)
        return view, self._fields(view)

    def _bank(self) -> Bank:
        config = self.config
        return make_bank(
            self.pool,
            self._fields,
            each=config.views,
            batch=config.batch,
            seed=config.seed,
            smallest=config.smallest_crop,
            device=self.device,
            watch=self.watch,
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
        """Whole batches (B, 3, H, H) of the images as they are: `most`, or as many as there are."""
        batch = self.config.batch
        count = max(min(most, len(self.pool.images)) // batch, 1) * batch
        for rows in self.pool.rows(self.config.seed, purpose, 0, count).split(batch):
            yield self.pool.batch(rows, self.device).float()

    @torch.no_grad()
    def _measure(self, weights: Mapping[str, float]) -> list[Target]:
        """The targets, with means and spreads over a sample of the images as they are."""
        seen: list[list[Tensor]] = [[] for _ in weights]
        for view in self._sample("sample", _SAMPLE):
            for fields, field in zip(seen, self._fields(view), strict=True):
                fields.append(field.float())
        return [Target(_label(name), fields) for name, fields in zip(weights, seen, strict=True)]

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Cosine and R² of every prediction, and what became of the geometry, on held-out images.

        Of the averaged weights, at each size; the R² is `r2_centred`.
        """
        student, sums = self.averaged, _Sums()
        held_out = self.pool.held_out
        for rows in whole_batches(len(held_out), self.config.batch):
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

    def _told(self, means: Mapping[str, float], rate: float) -> str:
        loss = sum(w * m for w, m in zip(self.weights.tolist(), means.values(), strict=True))
        return f"loss {loss:.3f}  geometry {means['geometry']:.3f}  {rate:,.0f} img/s"

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
            keep=_KEPT,
            kind=DISTILLATION,
        )

    @torch.no_grad()
    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on where `checkpoint` was written."""
        check_same(self.folder, checkpoint.about["settings"], self.settings)
        for name, kept in self._state().items():
            kept.copy_(checkpoint.tensors[name])
        self.step, self.before = checkpoint.step, checkpoint.about["seconds"]


class _Sums:
    """Residuals, totals and cosines, gathered over batches."""

    def __init__(self) -> None:
        self.residual: dict[str, Tensor] = {}
        self.total: dict[str, Tensor] = {}
        self.means: dict[str, list[float]] = {}

    def add(self, what: str, predicted: Tensor, target: Tensor) -> None:
        """Gather a prediction (..., d) of standardised features."""
        predicted = predicted.float()
        for sums, value in (
            (self.residual, (predicted - target).double().square().sum()),
            (self.total, target.double().square().sum()),
        ):
            sums[what] = sums.get(what, 0) + value
        cosine = torch.nn.functional.cosine_similarity(predicted, target, dim=-1)
        self.mean(f"{what}, cosine", cosine.double().mean().item())

    def mean(self, what: str, value: float) -> None:
        """Gather a number to be averaged over batches."""
        self.means.setdefault(what, []).append(value)

    def metrics(self) -> dict[str, float]:
        """All of it, by name."""
        found = {
            f"{what}, r2_centred": (1 - self.residual[what] / self.total[what]).item()
            for what in self.residual
        }
        averaged = {name: sum(each) / len(each) for name, each in self.means.items()}
        return dict(sorted({**found, **averaged}.items()))


def learning_rate(config: DistillConfig, progress: float) -> float:
    """The rate when a share `progress` of the run is done: a linear warm-up, then a cosine."""
    if progress < config.warmup:
        # Half a percent of the way at the start, because a rate of 0 would be a wasted step.
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
    labels = [_label(name) for name in weights]
    if len(set(labels)) < len(labels):
        raise ConfigError(
            f"Two networks are called {max(labels, key=labels.count)!r}.",
            "Give each folder a name of its own.",
        )
    if not data:
        raise TrainingError("There are no images to train on.", "Name some with --data.")
    if shares and (len(shares) != len(data) or not all(share > 0 for share in shares)):
        raise ConfigError(
            f"The shares of {len(data)} datasets are {', '.join(f'{s:g}' for s in shares)}.",
            "Give one number above 0 for each --data, in the same order.",
        )


def _label(name: str) -> str:
    return Path(name).name


def _millions(module: torch.nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in module.parameters()) / 1e6:.2f}"
