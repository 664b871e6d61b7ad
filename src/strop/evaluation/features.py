"""What every suite needs of a dataset, computed once: the teacher's fields, programs and truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.data.record import VOID, Batch, Dataset
from strop.data.stream import record_batches
from strop.model.length_head import whole_lengths
from strop.model.tokenizer import Tokenizer
from strop.program import Program

Progress = Callable[[int, int], None]
"""Called with how many images are done and how many there are."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """What is known about a dataset's images, on the CPU. All parts have one row per image.

    names     where each image came from
    images    (n, 3, H, H) uint8, as the model sees them
    semantic  (n, H, H) uint8, class ids, `VOID` where unlabelled; or None
    labels    (n, C) bool, or None
    depth     (n, H, H) float32, metres, 0 where unknown; or None
    classes   names of the semantic ids
    label_names  names of the entries of `labels`
    """

    names: tuple[str, ...]
    images: Tensor
    semantic: Tensor | None
    labels: Tensor | None
    depth: Tensor | None
    classes: tuple[str, ...]
    label_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, kw_only=True, eq=False)
class Features(Truth):
    """One dataset through one model, on the CPU.

    fields    (n, S, d_enc) float32, the teacher's, in the teacher's own scale
    raw       (n, K, d_c) float32, tokens before quantization, on the unit sphere
    program   all K codes, and the lengths the model chose
    """

    fields: Tensor
    raw: Tensor
    program: Program


@torch.no_grad()
def compute_features(
    tokenizer: Tokenizer,
    dataset: Dataset,
    *,
    batch: int = 32,
    workers: int = 0,
    progress: Progress | None = None,
) -> Features:
    """Run teacher, generator, quantizer and length head over a dataset, once, in its order."""
    config = tokenizer.config
    fields, raw, codes, lengths, records = [], [], [], [], []
    done = 0
    for loaded in record_batches(
        dataset,
        size=config.image_size,
        fit=config.fit,
        batch=batch,
        device=tokenizer.device,
        workers=workers,
    ):
        scaled = tokenizer._scaled_field(loaded.images.to(tokenizer.device))
        z, written, chosen = _encoded(tokenizer, scaled)
        fields.append((scaled / config.teacher.scale).cpu())
        raw.append(z.cpu())
        codes.append(written.cpu())
        lengths.append(chosen.cpu())
        records.append(loaded)
        done += len(loaded)
        if progress is not None:
            progress(done, len(dataset))
    program = Program(
        codes=torch.cat(codes),
        lengths=torch.cat(lengths),
        codebook_size=config.quantizer.codes,
        model=tokenizer.identity.codes,
    )
    return Features(
        fields=torch.cat(fields),
        raw=torch.cat(raw),
        program=program,
        **vars(truth_of(dataset, records)),
    )


def truth_of(dataset: Dataset, batches: list[Batch]) -> Truth:
    """What is known about the images of a dataset, from all its batches."""

    def part(name: str) -> Tensor | None:
        parts = [getattr(batch, name) for batch in batches]
        return None if any(each is None for each in parts) else torch.cat(parts)

    semantic = part("semantic")
    return Truth(
        names=tuple(name for batch in batches for name in batch.names),
        images=torch.cat([batch.images for batch in batches]),
        semantic=None if semantic is None else semantic.clamp(max=VOID).to(torch.uint8),
        labels=part("labels"),
        depth=part("depth"),
        classes=dataset.classes,
        label_names=dataset.label_names,
    )


@torch.no_grad()
def encode_fields(tokenizer: Tokenizer, fields: Tensor, *, batch: int = 64) -> Program:
    """Fields (n, S, d_enc) in the teacher's scale to their programs, as images would give them."""
    parts = [
        _encoded(tokenizer, part.to(tokenizer.device).float() * tokenizer.config.teacher.scale)
        for part in fields.split(batch)
    ]
    return Program(
        codes=torch.cat([codes for _, codes, _ in parts]),
        lengths=torch.cat([lengths for _, _, lengths in parts]),
        codebook_size=tokenizer.config.quantizer.codes,
        model=tokenizer.identity.codes,
    )


def _encoded(tokenizer: Tokenizer, scaled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A scaled field (B, S, d_enc) to raw tokens (B, K, d_c), codes (B, K) and lengths (B,)."""
    with tokenizer._autocast():
        quantized = tokenizer.quantizer(tokenizer.generator(scaled))
        predicted = tokenizer.length_head(scaled)
    return quantized.z, quantized.codes, whole_lengths(predicted, tokenizer.config.max_length)
