"""The bundled teacher is a DINOv3 to `transformers` as to `strop`."""

from __future__ import annotations

import pytest
import torch
import transformers

from strop.model.teacher import BUNDLED, IMAGENET, load_teacher


@pytest.mark.parametrize("size", [128, 256])
@torch.no_grad()
def test_transformers_gives_the_same_patch_tokens(size: int) -> None:
    model = transformers.AutoModel.from_pretrained(BUNDLED / "tiny", dtype=torch.float32).eval()
    assert isinstance(model, transformers.DINOv3ViTModel)
    assert 5e6 <= model.num_parameters() <= 6e6
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=random)
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in IMAGENET)
    tokens = model(pixel_values=(images / 255 - mean) / std).last_hidden_state
    field = load_teacher("tiny")(images)
    assert field.shape == (2, (size // 16) ** 2, 192)
    # Before the patches come the class token and four registers.
    torch.testing.assert_close(tokens[:, 5:], field, rtol=0, atol=1e-5)
