"""Entropy-coded programs: bytes of the range coder, and R² beside PCA of as many coded bits.

    python benchmarks/entropy.py photos --shared ../shared     # photographs of COCO
    python benchmarks/entropy.py MODEL --data SPEC --fit SPEC

PCA gets a coder as adaptive as the prior: all coefficients have one step, and each has a Laplace
distribution of its own scale, times a factor that follows the coefficients before it in the image.
Scales and settings are fitted on images that the directions were not fitted on.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from common import save
from strop.agreement import Agreement, agree
from strop.analysis.alignment import interpreted
from strop.analysis.baselines.pca import Transform, joint, separable
from strop.analysis.prior import Prior, load_prior
from strop.analysis.program_coding import decode_programs, encode_programs
from strop.analysis.subject import Subject
from strop.data.loader import record_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.data.subset import Subset
from strop.model.checkpoint import load
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.statistics import bootstrap

MEMORIES = (8.0, 32.0, 256.0)
"""Candidates for the weight, in coefficients, of the expected scale against what was coded."""
ROUNDINGS = (0.4, 0.3, 0.2, 0.1)
"""Candidates for the share of a step that is rounded up: less than a half spends fewer bits."""
MOST = 2048  # coefficients


class AdaptivePCA:
    """Quantized coefficients of a transform, and what they cost an adaptive entropy coder."""

    def __init__(self, transform: Transform, fields: Tensor) -> None:
        self.transform = transform
        coefficients = transform.forward(fields)
        self.width = coefficients.shape[1]
        scale = coefficients.abs().mean(0)
        self.order = scale.argsort(descending=True)[:MOST]
        self.scale = scale[self.order].clamp(min=1e-9)
        self.values = coefficients[:, self.order]

    def coefficients(self, fields: Tensor) -> Tensor:
        """The coefficients (n, C) that are coded, the largest first."""
        return self.transform.forward(fields)[:, self.order]

    def quantized(self, values: Tensor, step: float, setting: Setting) -> tuple[Tensor, Tensor]:
        """Coefficients (n, C) to their bits (n,) and quantized values (n, C)."""
        size = (values.abs() / step + setting.rounding).floor()
        # What a decoder knows of the scale: a zero stands for about a third of a step.
        known = torch.where(size > 0, size, 0.3) * step / self.scale.clamp(min=0.3 * step)
        before = known.cumsum(1) - known
        count = torch.arange(values.shape[1], dtype=values.dtype, device=values.device)
        factor = (setting.memory + before) / (setting.memory + count)
        edge = 1 - setting.rounding  # of the bin around zero, in steps
        low, high = size - 1 + edge, size + edge
        scale = self.scale * factor / step
        zero = 1 - torch.exp(-edge / scale)
        other = 0.5 * (torch.exp(-low / scale) - torch.exp(-high / scale))
        bits = -torch.where(size > 0, other, zero).clamp(min=1e-12).log2()
        # The mean of a Laplace distribution in its bin.
        width = 1 / scale
        centre = low + scale - 1 / (torch.exp(width.clamp(max=60)) - 1).clamp(min=1e-9)
        made = torch.where(size > 0, centre.clamp(min=0) * values.sign() * step, 0)
        return bits.sum(1), made

    def decoded(self, made: Tensor) -> Tensor:
        """Quantized values (n, C) to fields."""
        every = made.new_zeros(len(made), self.width)
        every[:, self.order] = made
        return self.transform.backward(every)


class Setting(NamedTuple):
    """What is chosen of the coder of PCA."""

    memory: float
    rounding: float


def pca_at(coders: list[AdaptivePCA], fields: Tensor, bits: float) -> tuple[Tensor, dict[str, Any]]:
    """Decoded fields of the best coder at `bits` per image, chosen on other images."""
    found = []
    for coder in coders:
        for setting in (Setting(m, r) for m in MEMORIES for r in ROUNDINGS):
            step = step_for(coder, coder.values, setting, bits)
            made = coder.quantized(coder.values, step, setting)[1]
            kept = (coder.values**2).sum() - ((made - coder.values) ** 2).sum()
            found.append((float(kept), coder, setting))
    _, coder, setting = max(found, key=lambda each: each[0])
    values = coder.coefficients(fields)
    step = step_for(coder, values, setting, bits)
    spent, made = coder.quantized(values, step, setting)
    about = {"transform": coder.transform.name, **setting._asdict(), "step": step}
    return coder.decoded(made), {**about, "bits": float(spent.mean())}


def step_for(coder: AdaptivePCA, values: Tensor, setting: Setting, wanted: float) -> float:
    """The step at which coefficients cost `wanted` bits an image, by bisection."""
    low, high = float(coder.scale[0]) / 100, float(coder.scale[0]) * 100
    for _ in range(16):
        middle = (low * high) ** 0.5
        if float(coder.quantized(values, middle, setting)[0].mean()) > wanted:
            low = middle
        else:
            high = middle
    return high


def margin(model: Agreement, other: Agreement) -> dict[str, float]:
    """R² centred of the model less that of the other, with its interval over images."""
    mean = model.channels.mean(0)
    total = model.square - model.size * (2 * (model.channels @ mean) - mean @ mean) / len(mean)

    def less(mine: np.ndarray, theirs: np.ndarray, total: np.ndarray) -> float:
        return float((theirs.sum() - mine.sum()) / total.sum())

    return bootstrap(less, model.residual, other.residual, total)._asdict()


def coded(program: Program, prior: Prior) -> dict[str, Any]:
    """Bytes of the range coder beside a fixed rate; the stream is decoded again."""
    stream = encode_programs(program, prior)
    if decode_programs(stream, len(program), prior) != program:
        raise AssertionError("The programs do not come back.")
    fixed = float(program.bits.sum()) / 8
    return {
        "images": len(program),
        "bytes_per_image": len(stream) / len(program),
        "fixed_bytes_per_image": fixed / len(program),
        "of_fixed_rate": len(stream) / fixed,
        "ideal_bits_per_image": float(prior.bits(program).mean()),
    }


def compare(
    tokenizer: Tokenizer, prior: Prior, data: Dataset, fit: Dataset, lengths: list[int]
) -> list[dict[str, Any]]:
    """R² of programs and of PCA at the model's own lengths and at forced ones."""
    measured = Subject(tokenizer=tokenizer, dataset=data, data=data.name)
    fields, program = measured.fields.to(tokenizer.device), measured.program
    config = tokenizer.config
    fitted = torch.cat(
        [
            tokenizer.field(batch.images)
            for batch in record_batches(
                fit, size=config.image_size, fit=config.fit, device=tokenizer.device
            )
        ]
    )
    mean = fitted.mean(0)
    held = len(fitted) // 4
    choosing, basis = fitted[:held] - mean, fitted[held:] - mean
    coders = [AdaptivePCA(each, choosing) for each in (separable(basis), joint(basis))]
    rates = {"own": program.lengths}
    rates |= {str(n): torch.full_like(program.lengths, n) for n in lengths}
    rows = []
    for name, chosen in rates.items():
        part = program.with_lengths(chosen)
        bits = float(part.entropy_bits(prior).mean())
        model = agree(interpreted(tokenizer, part, fields))
        decoded, about = pca_at(coders, fields - mean, bits)
        other = agree([(decoded + mean, fields)])
        rows.append(
            {
                "lengths": name,
                "images": len(fields),
                "fitted_on": len(fitted),
                "fixed_bits": float(part.bits.mean()),
                "coded_bits": bits,
                "model": model.scores(),
                "pca": {**other.scores(), **about},
                "margin_r2_centred": margin(model, other),
            }
        )
        print(rows[-1], flush=True)
    return rows


SHARDS = "shards:{shared}/data/coco-shards/coco2017-256-{split}-{which}.tar"


def public(spec: str) -> str:
    """A spec without the folders of its path."""
    kind, _, rest = spec.partition(":")
    return f"{kind}:{rest.rpartition('/')[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--shared", help="folder with COCO's shards, in place of --data and --fit")
    parser.add_argument("--data", help="images to measure on")
    parser.add_argument("--fit", help="images to fit PCA on; without, only bytes are measured")
    parser.add_argument("--images", type=int, default=384, help="of --data, measured beside PCA")
    parser.add_argument("--fit-images", type=int, default=12288, help="of --fit")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64])
    args = parser.parse_args()
    if args.shared is not None:
        args.data = SHARDS.format(shared=args.shared, split="val", which="000")
        args.fit = SHARDS.format(shared=args.shared, split="train", which="*")
    tokenizer, prior = load(args.model), load_prior(args.model)
    dataset = open_dataset(args.data)
    program = Subject(tokenizer=tokenizer, dataset=dataset, data=args.data).program
    result = {
        "model": args.model,
        "data": public(args.data),
        "codes": tokenizer.identity.codes,
        "prior_bytes": len(prior.to_bytes()),
        "coded": coded(program, prior),
    }
    print(result["coded"], flush=True)
    save(f"entropy_{args.model}", result)
    if args.fit is not None:
        fit = open_dataset(args.fit)
        rates = compare(
            tokenizer,
            prior,
            Subset(dataset, range(min(args.images, len(dataset)))),
            Subset(fit, range(min(args.fit_images, len(fit)))),
            args.lengths,
        )
        save(f"entropy_{args.model}", {**result, "fit": public(args.fit), "rates": rates})


if __name__ == "__main__":
    main()
