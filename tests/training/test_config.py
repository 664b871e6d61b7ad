"""The schedule, presets and their errors."""

from __future__ import annotations

import pytest

from strop.config import to_dict
from strop.curriculum import scaled
from strop.errors import ConfigError
from strop.training.preset import (
    TrainingConfig,
    learning_rate,
    load_preset,
    parse_assignments,
    preset_names,
)

PAPER = TrainingConfig()


def test_the_rate_warms_up_holds_and_follows_a_cosine():
    assert learning_rate(PAPER, 0) == pytest.approx(3e-4 / 30_000)
    assert learning_rate(PAPER, 14_999) == pytest.approx(1.5e-4)
    assert learning_rate(PAPER, 29_999) == pytest.approx(3e-4)
    assert learning_rate(PAPER, 99_999) == pytest.approx(3e-4)
    # halfway from 100k to 500k the cosine stands at the mean of 3e-4 and 1e-4
    assert learning_rate(PAPER, 300_000) == pytest.approx(2e-4)
    assert learning_rate(PAPER, 500_000) == pytest.approx(1e-4)


def test_the_rate_scales_with_the_run():
    short = scaled(TrainingConfig(steps=5_000), 5_000)
    assert (short.warmup, short.hold_until) == (300, 1_000)
    assert (short.validate_every, short.checkpoint_every) == (50, 100)
    assert short.reseed_every == 100
    assert learning_rate(short, 3_000) == pytest.approx(2e-4)
    assert learning_rate(scaled(TrainingConfig(steps=10, warmup=0), 10), 0) == pytest.approx(3e-4)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"steps": 0}, "steps"),
        ({"batch": 0}, "batch"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"betas": (0.9,)}, "betas"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"weight_average": 1.0}, "weight_average"),
        ({"hold_until": 10}, "hold_until"),
        ({"held_out": -1}, "held_out"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, name):
    with pytest.raises(ConfigError, match=name):
        TrainingConfig(**values)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads(name):
    preset = load_preset(name)
    assert preset.name == name


def test_the_papers_presets_differ_where_the_paper_says():
    small, medium = load_preset("strop-s-dinov3-s"), load_preset("strop-m-dinov3-s")
    assert small.curriculum.phase_ends == (100_000, 150_000, 200_000, 250_000)
    assert medium.curriculum.phase_ends == (200_000, 250_000, 300_000, 350_000)
    assert small.objective == medium.objective
    assert load_preset("clevr-64").training.batch == 128


def test_a_preset_may_extend_another_and_changes_only_what_it_says(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(
        'extends = "strop-s-dinov3-s"\n[training]\nbatch = 7\n[model.quantizer]\ncodes = 99\n'
    )
    preset, base = load_preset(str(own)), load_preset("strop-s-dinov3-s")
    assert (preset.name, preset.training.batch, preset.model.quantizer.codes) == ("own", 7, 99)
    assert preset.model.quantizer.code_width == base.model.quantizer.code_width
    assert preset.curriculum == base.curriculum


def test_circles_of_presets_are_refused(tmp_path):
    a, b = tmp_path / "a.toml", tmp_path / "b.toml"
    a.write_text(f'extends = "{b}"\n')
    b.write_text(f'extends = "{a}"\n')
    with pytest.raises(ConfigError, match="circle"):
        load_preset(str(a))


def test_unknown_names_and_keys_come_with_a_suggestion(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'strop-s-dinov3-s'"):
        load_preset("strop-s-dinov3")
    with pytest.raises(ConfigError, match=r"training\.bach.*'training.batch'"):
        load_preset("strop-nano", {"training.bach": 3})
    with pytest.raises(ConfigError, match="Give a whole number"):
        load_preset("strop-nano", {"training.batch": "many"})
    own = tmp_path / "own.toml"
    own.write_text('extends = "strop-nano"\n[curriculm]\n')
    with pytest.raises(ConfigError, match=r"curriculm.*'curriculum'"):
        load_preset(str(own))
    own.write_text("steps = = 3")
    with pytest.raises(ConfigError, match="TOML"):
        load_preset(str(own))
    own.write_text(f"extends = '{'[' * 2000}'")
    with pytest.raises(ConfigError, match="name of a preset cannot be looked up"):
        load_preset(str(own))
    own.write_text("extends = 3")
    with pytest.raises(ConfigError, match="extends"):
        load_preset(str(own))


def test_assignments_are_read_as_toml_or_else_as_text():
    parsed = parse_assignments(
        ["training.batch=64", "training.flip = false", "training.data=coco:/x", "a.b=[1, 2]"]
    )
    assert parsed == {
        "training.batch": 64,
        "training.flip": False,
        "training.data": "coco:/x",
        "a.b": [1, 2],
    }
    with pytest.raises(ConfigError, match="does not set"):
        parse_assignments(["training.batch"])


def test_overrides_reach_every_table():
    preset = load_preset(
        "strop-nano",
        {"training.steps": 9, "model.quantizer.codes": 16, "curriculum.keep": 2.0},
    )
    assert to_dict(preset)["training"]["steps"] == 9
    assert preset.model.quantizer.codes == 16
    assert preset.curriculum.keep == 2.0


def test_fast_presets_train_a_rate_head_at_random_lengths_down_to_one():
    for name in ("strop-s-fast", "strop-xs", "strop-xs-scenes"):
        preset = load_preset(name)
        assert preset.model.length_head.kind == "rate"
        assert preset.curriculum.truncation_minimum == 1
        assert preset.curriculum.handoff_ceiling == 0
    for name in ("strop-s-dinov3-s", "strop-m-dinov3-l", "clevr-64", "strop-nano"):
        preset = load_preset(name)
        assert preset.model.length_head.kind == "paper"
        assert preset.curriculum.truncation == "beta"


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("objective.commitment_weight=nan", "commitment_weight is nan"),
        ("objective.commitment_weight=-5", "commitment_weight is -5"),
        ("curriculum.extend=inf", "extend is inf"),
        ("curriculum.keep=-1", "keep is -1"),
        ("training.reseed_below=nan", "reseed_below is nan"),
        ("training.steps=9223372036854775808", "steps is 9223372036854775808"),
        (f"training.steps={'9' * 5000}", "training.steps cannot be read"),
        (f"training.steps={'[' * 5000}", "training.steps cannot be read"),
        ("training.seed=99999999999999999999999", "seed is 9999"),
        (f"training.learning_rate=1{'0' * 400}", "learning_rate is 1000"),
        ("model.max_length=9223372036854775807", "max_length is 9223372036854775807"),
        ("model.quantizer.codes=4611686018427387904", "quantizer.codes is 4611686018427387904"),
        ("model.image_size=1048576", "image_size is 1048576"),
        ("model.generator.depth=20000", r"generator.depth is 20000. .* at most 256"),
    ],
)
def test_absurd_settings_are_refused_by_name(assignment, complaint):
    with pytest.raises(ConfigError, match=complaint):
        load_preset("strop-nano", parse_assignments([assignment]))


@pytest.mark.parametrize(
    "content",
    [b"x = " + b"[" * 20_000, b"x = " + b"9" * 5000, b"\xff\xfe\x00", b"x = {a = " * 5000],
)
def test_absurd_presets_are_refused_by_name(tmp_path, content):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"mine.toml is not valid TOML"):
        load_preset(str(path))
