"""Training of the pixel decoder on the fields of a frozen tokenizer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from strop.data.loader import checked_images, image_batches
from strop.data.record import Dataset
from strop.data.spec import open_dataset
from strop.data.subset import Subset
from strop.errors import TrainingError
from strop.model.decoder import Decoder, DecoderConfig
from strop.model.interpreter import prefix_mask
from strop.model.tokenizer import Tokenizer
from strop.objective import latent_alignment
from strop.progress import Progress, no_progress
from strop.random import seeded
from strop.training.fit import fit
from strop.training.forward import ALONE
from strop.training.preset import TrainingConfig
from strop.training.run_data import CachedFieldLoader, OnlineFieldLoader, check_images, split
from strop.training.views import draw_versions, version_images

RESIDENT_BYTES = 4 << 30
"""Size of the uint8 images that are kept in memory; larger datasets are read in every epoch."""

HELD_OUT = 64
"""Number of validation images, at most."""

ABOUT_WIDTHS = "decoder widths"
"""Key of `Tokenizer.about` for the decoder widths of the preset, in a model without a decoder."""


def train_decoder(
    tokenizer: Tokenizer,
    data: str | Dataset | Tensor,
    *,
    steps: int = 20_000,
    batch: int = 32,
    learning_rate: float = 1e-3,
    loading_workers: int = 0,
    progress: Progress = no_progress,
    report_every: int = 50,
) -> dict[str, float]:
    """Train a decoder on the interpreted fields of a frozen `tokenizer` and add it to the model.

    data  a spec, a dataset, or uint8 images (n, 3, H, H) of the model's size; some are held out for
          the PSNR, SSIM and L1 that are returned

    The widths of its blocks are those of the model or of its preset. The loss is L1 plus the latent
    alignment of the teacher's fields of the decoded and the original image. On a GPU everything
    except the losses runs in bf16.
    """
    config, device = tokenizer.config, tokenizer.device
    decoder_config = config.decoder or DecoderConfig()
    if config.decoder is None and (widths := tokenizer.about.get(ABOUT_WIDTHS)):
        decoder_config = DecoderConfig(widths=tuple(widths))
    with seeded(0):
        decoder = Decoder(decoder_config, field_width=config.teacher.width).to(device)
    source = _held(
        open_dataset(data) if isinstance(data, str) else data, tokenizer, loading_workers
    )
    kept, held = split(len(source), HELD_OUT)
    check_images(len(kept), batch)
    tokenizer.eval()
    teacher, bf16 = tokenizer.teacher, device.type == "cuda"
    training = TrainingConfig(batch=batch)
    images_of: Iterator[Tensor]
    if isinstance(source, Tensor):
        held_images: Dataset | Tensor = source[held.to(source.device)]
        resident = CachedFieldLoader(source[:, None], training, ALONE, device=device, kept=kept)
        images_of = map(resident.field_of, resident.batches(0))
    else:
        held_images = Subset(source, held.tolist())
        read = OnlineFieldLoader(
            Subset(source, kept.tolist()),
            teacher,
            training,
            ALONE,
            size=config.image_size,
            fit=config.fit,
            device=device,
            loading_workers=loading_workers,
        )
        images_of = (images for images, _ in read.batches(0))
    terms = torch.zeros(2)

    def loss_of_step(step: int) -> Tensor:
        nonlocal terms
        drawn = draw_versions(training, step).to(device)  # mirrored or not
        images = version_images(next(images_of), drawn, training)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            field, made = interpreted(tokenizer, images)
            decoded = decoder(made)
            seen = teacher.patch_tokens(
                teacher.backbone, teacher.preprocess(decoded.float() * 255)
            ).float()
            perceptual = latent_alignment(seen * config.teacher.scale, field).mean()
        l1 = (decoded.float() - images.float() / 255).abs().mean()
        terms = torch.stack([l1, perceptual]).detach()
        return l1 + perceptual

    def report(step: int, steps: int) -> None:
        if step % report_every and step < steps:
            return
        l1, perceptual = terms.tolist()
        if not math.isfinite(l1 + perceptual):
            raise TrainingError(
                f"Training the decoder failed by step {step}: L1 is {l1}, the perceptual term "
                f"{perceptual}.",
                "Lower its learning rate.",
            )
        progress(f"decoder: L1 {l1:.4f}  perceptual {perceptual:.4f}", step, steps)

    fit(
        decoder.parameters(),
        loss_of_step,
        steps=steps,
        learning_rate=learning_rate,
        weight_decay=0.01,
        betas=(0.9, 0.99),
        progress=report,
    )
    tokenizer.decoder = decoder.eval()
    tokenizer.config = replace(config, decoder=decoder_config)
    tokenizer.about.pop(ABOUT_WIDTHS, None)
    tokenizer.about.pop("load", None)  # the bundled model of that name differs
    tokenizer.about["decoder"] = f"trained afterwards, {steps:,} steps of {batch} images"
    if not len(held):
        return {}
    size, fit_to = config.image_size, config.fit
    batches = image_batches(held_images, size=size, fit=fit_to, batch=16, device=device)
    return measure_decoder(tokenizer, batches)


@torch.no_grad()
def interpreted(tokenizer: Tokenizer, images: Tensor) -> tuple[Tensor, Tensor]:
    """The scaled fields of the teacher and, at predicted lengths, of the interpreter.

    images  (B, 3, H, H) uint8
    """
    encoding, config = tokenizer(images), tokenizer.config
    active = prefix_mask(encoding.lengths, config.max_length)
    made = tokenizer.interpret_codes(encoding.codes, active)
    return encoding.field * config.teacher.scale, made * config.teacher.scale


@torch.no_grad()
def measure_decoder(tokenizer: Tokenizer, images: Iterator[Tensor]) -> dict[str, float]:
    """PSNR, SSIM and L1 of decoded images at predicted lengths, over uint8 batches."""
    assert tokenizer.decoder is not None
    squared = absolute = similar = pixels = count = 0.0
    for batch in images:
        _, made = interpreted(tokenizer, batch)
        decoded, truth = tokenizer.decoder(made).float(), batch.float() / 255
        squared += (decoded - truth).square().sum().item()
        absolute += (decoded - truth).abs().sum().item()
        similar += ssim(decoded, truth).sum().item()
        pixels += truth.numel()
        count += len(batch)
    return {
        "psnr": -10 * math.log10(max(squared / pixels, 1e-12)),
        "ssim": similar / count,
        "l1": absolute / pixels,
    }


def ssim(x: Tensor, y: Tensor) -> Tensor:
    """Structural similarity (B,) of images (B, 3, H, W) in [0, 1]: Wang et al. 2004."""
    window, sigma = 11, 1.5
    offset = torch.arange(window, device=x.device, dtype=x.dtype) - window // 2
    weight = torch.softmax(-offset.square() / (2 * sigma**2), dim=0)
    channels = x.shape[1]
    kernel = torch.outer(weight, weight).expand(channels, 1, -1, -1)

    def blur(image: Tensor) -> Tensor:
        return F.conv2d(image, kernel, groups=channels)

    mean_x, mean_y = blur(x), blur(y)
    var_x, var_y = blur(x * x) - mean_x**2, blur(y * y) - mean_y**2
    both = blur(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    score = ((2 * mean_x * mean_y + c1) * (2 * both + c2)) / (
        (mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2)
    )
    return score.mean((1, 2, 3))


def _held(source: Dataset | Tensor, tokenizer: Tokenizer, workers: int) -> Dataset | Tensor:
    """All images in memory, if they are not too many."""
    config = tokenizer.config
    if isinstance(source, Tensor):
        return checked_images(source, config.image_size)
    if len(source) * 3 * config.image_size**2 > RESIDENT_BYTES:
        return source
    batches = image_batches(
        source,
        size=config.image_size,
        fit=config.fit,
        device=tokenizer.device,
        workers=workers,
    )
    return torch.cat(list(batches))
