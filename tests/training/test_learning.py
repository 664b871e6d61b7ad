"""The whole on rendered scenes: a small model learns them, and gives fuller scenes longer programs.

`scenes.jpg` is a sheet of 480 scenes of `strop data scenes` at 96 px, `scenes.json` holds their
numbers of objects; the last 96, twelve for each number from three to ten, are held out.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from strop.images import read_image
from strop.metrics import r2_centred
from strop.model.teacher import load_teacher
from strop.training.callbacks import read_metrics
from strop.training.loop import train
from strop.training.preset import load_preset

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def scenes() -> tuple[torch.Tensor, torch.Tensor, int]:
    """uint8 (480, 3, 96, 96), objects (480,), and how many are held out."""
    about = json.loads((HERE / "scenes.json").read_text())
    sheet, size = read_image(HERE / "scenes.jpg"), about["size"]
    tiles = sheet.unflatten(2, (-1, size)).unflatten(1, (-1, size)).permute(1, 3, 0, 2, 4)
    return tiles.flatten(0, 1), torch.tensor(about["objects"]), about["held_out"]


def test_a_small_model_learns_scenes_and_how_long_their_programs_should_be(scenes, tmp_path):
    images, objects, held = scenes
    teacher = load_teacher("random:tiny")
    fields = torch.cat([teacher(batch).bfloat16() for batch in images.split(32)])[:, None]
    preset = load_preset(
        "strop-nano",
        {
            "model.image_size": 96,
            "training.steps": 500,
            "training.flip": False,
            "training.validate_every": 250_000,
            "training.checkpoint_every": 500_000,
        },
    )
    result = train(preset, fields[:-held], validation=fields[-held:], out=tmp_path)

    # What the interpreter could say without a program: the mean field of the training scenes.
    target = fields[-held:, 0].float()
    floor = r2_centred(fields[:-held, 0].float().mean(0).expand_as(target), target).item()
    metrics = result.metrics
    assert metrics["r2_centred"] > 0.55
    assert metrics["r2_centred"] > floor + 0.02
    assert metrics["codes_used"] > 0.5
    assert metrics["length_detail_correlation"] > 0.5
    halfway = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["step"] == 250]
    assert metrics["r2_centred"] > halfway[-1]["r2_centred"]

    tokenizer = result.tokenizer
    with torch.no_grad():
        lengths = tokenizer.length_head(target * tokenizer.config.teacher.scale)
    few, many = (lengths[objects[-held:] == number].mean().item() for number in (3, 10))
    assert many > few + 1
