"""A whole run: files, callbacks, validation, warm starts, failures."""

from __future__ import annotations

import json
import logging
import math
import signal
import sys
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from rich.console import Console
from tiny_training import (
    K,
    tiny_centred_config,
    tiny_config,
    tiny_fields,
    tiny_preset,
    tiny_tokenizer,
)

import strop.metrics
from strop.errors import ConfigError, TrainingError
from strop.model.checkpoint import load_folder
from strop.model.interpreter import prefix_mask
from strop.model.length_head import LengthHeadConfig
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import TeacherConfig
from strop.progress import no_progress, shown
from strop.training.callbacks import LOGS, Callback, TensorBoard, read_metrics
from strop.training.forward import METRICS
from strop.training.loop import codebook_health, summary, train, warm_start
from strop.training.run_checkpoint import checkpoint_paths
from strop.training.validation import correlation, validate


def test_a_run_writes_all_its_files(tmp_path):
    calls = []

    class Watcher(Callback):
        def on_start(self, run):
            calls.append(("start", run.step))

        def on_validation(self, run, metrics):
            calls.append(("validation", run.step))

        def on_checkpoint(self, run, path):
            calls.append(("checkpoint", run.step))

        def on_end(self, run, finished):
            calls.append(("end", finished))

    shown = []
    watchers = [Watcher(), TensorBoard(tmp_path / "tensorboard")]
    result = train(
        tiny_preset(),
        tiny_fields(60),
        out=tmp_path,
        callbacks=watchers,
        progress=lambda *report: shown.append(report),
    )
    assert result.finished
    assert result.step == 60
    assert calls[0] == ("start", 0)
    assert calls[-1] == ("end", True)
    assert [step for name, step in calls if name == "validation"] == [30, 60]
    assert [step for name, step in calls if name == "checkpoint"] == [12, 24, 36, 48, 60]
    assert len(checkpoint_paths(tmp_path / "checkpoints")) == 2
    for name in ("losses.png", "lengths.png", "r2.png"):
        assert (tmp_path / name).stat().st_size > 1000
    assert list((tmp_path / "tensorboard").iterdir())
    assert [done for _, done, total in shown if total == 60] == list(range(0, 61, 5))
    assert shown[0][0] == "training"
    assert all(text.startswith("training: phase ") and "img/s" in text for text, *_ in shown[1:])
    assert "R²" in shown[-1][0]
    assert "R²" not in shown[1][0]  # before the first validation

    lines = read_metrics(tmp_path / "metrics.jsonl")
    logs = [line for line in lines if line["kind"] == "training"]
    assert [line["step"] for line in logs] == list(range(5, 61, 5))
    assert [logs[i]["phase"] for i in (0, 2, 3, 4, 6)] == [1, 2, 3, 4, 5]
    expected = {"latent", "commitment", "diversity", "length", "m", "u_short", "u_long"}
    expected |= {"predicted_length_spread", "length_target_correlation", "codes_in_use"}
    expected |= {"codes_perplexity", "raw_norm", "gradient_norm", "images_per_second"}
    assert expected <= logs[-1].keys()

    model = load_folder(tmp_path / "model")
    assert model.about["data"] == "fields in memory (54 images)"
    assert "r2_centred, held out" in model.about["metrics"]
    card = (tmp_path / "model/README.md").read_text()
    assert "60 of 8 images" in card
    for name, value in result.tokenizer.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name
    assert json.loads((tmp_path / "run.json").read_text())["training"]["steps"] == 60


def test_the_same_seed_gives_the_same_model_and_another_another():
    fields = tiny_fields(60)
    runs = [
        train(tiny_preset(steps=10, seed=seed), fields).tokenizer.state_dict() for seed in (1, 1, 2)
    ]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not torch.equal(runs[0]["generator.queries"], runs[2]["generator.queries"])


def test_a_run_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(tiny_preset(steps=5), tiny_fields(60))
    assert torch.equal(torch.rand(3), expected)


def test_a_single_image_has_no_floor():
    alone = validate(tiny_tokenizer(), tiny_fields(1)[:, 0])
    assert "r2_centred" in alone
    assert not any("mean_field" in name for name in alone)


def test_validation_agrees_with_the_definitions():
    tokenizer, fields = tiny_tokenizer(), tiny_fields(20)[:, 0]
    metrics = validate(tokenizer, fields, batch=7)
    scaled = fields.float() * 0.5
    with torch.no_grad():
        z_q = tokenizer.quantizer(tokenizer.generator(scaled)).z_q
        active = prefix_mask(torch.full((20,), 8), K)
        seen = tokenizer.interpreter(z_q, active) / 0.5
    target = fields.float()
    assert metrics["r2@8"] == pytest.approx(strop.metrics.r2(seen, target).item(), abs=1e-5)
    assert metrics["r2_centred@8"] == pytest.approx(
        strop.metrics.r2_centred(seen, target).item(), abs=1e-5
    )
    assert metrics["cosine@8"] == pytest.approx(strop.metrics.cosine(seen, target).item(), abs=1e-5)
    mean_field = target.mean(0).expand_as(target)
    for name in ("r2", "r2_centred", "cosine"):
        expected = getattr(strop.metrics, name)(mean_field, target).item()
        assert metrics[f"{name}_mean_field"] == pytest.approx(expected, abs=1e-5)


def test_correlation_by_hand():
    x = torch.tensor([1.0, 2.0, 3.0])
    assert correlation(x, 2 * x + 1) == pytest.approx(1.0)
    assert correlation(x, -x) == pytest.approx(-1.0)
    assert correlation(x, torch.ones(3)) == 0.0


def test_summaries_by_hand():
    means = dict.fromkeys(METRICS, 0.0) | {
        # predicted 2 and 4, targets 1 and 5
        "predicted_length": 3.0,
        "predicted_length_squared": 10.0,
        "target_length": 3.0,
        "target_length_squared": 13.0,
        "predicted_times_target": 11.0,
    }
    result = summary(means)
    assert result["predicted_length_spread"] == pytest.approx(1.0)
    assert result["target_length_spread"] == pytest.approx(2.0)
    assert result["length_target_correlation"] == pytest.approx(1.0)
    health = codebook_health(torch.tensor([2.0, 2.0, 0.0, 0.05]), 0.1)
    assert health["codes_in_use"] == 0.5
    assert health["codes_perplexity"] == pytest.approx(2.16, abs=0.05)


def test_a_loss_that_is_not_a_number_stops_with_step_term_and_checkpoint(tmp_path):
    class Poison(Callback):
        def on_checkpoint(self, run, path):
            if run.step == 24:
                with torch.no_grad():
                    run.stepper.tokenizer.interpreter.project.bias.fill_(math.nan)

    with pytest.raises(TrainingError) as failure:
        train(tiny_preset(), tiny_fields(60), out=tmp_path, callbacks=[Poison()])
    assert "failed at step 24" in str(failure.value)
    assert "the latent term is nan, not finite" in str(failure.value)
    assert "step-00000024.safetensors" in str(failure.value)


def test_an_exploding_loss_stops_the_run():
    with pytest.raises(TrainingError, match=r"latent term is .* above the limit of 0\.5"):
        train(tiny_preset(loss_limit=0.5), tiny_fields(60))


def test_a_warm_start_copies_tensors_that_fit():
    fields = tiny_fields(60)
    old = train(tiny_preset(steps=20), fields).tokenizer
    same = tiny_tokenizer(seed=9)
    assert "quantizer.codebook" in warm_start(same, old)
    assert torch.equal(same.generator.queries, old.generator.queries)
    other = tiny_tokenizer(seed=9, quantizer=QuantizerConfig(codes=64, code_width=4))
    with pytest.warns(UserWarning, match=r"quantizer.codebook \[64, 4\], given as \[32, 4\]"):
        copied = warm_start(other, old)
    assert not any(name.startswith("quantizer.") for name in copied)
    assert torch.equal(other.interpreter.grid, old.interpreter.grid)
    centred = tiny_tokenizer(seed=9, quantizer=tiny_centred_config().quantizer)
    for target, source in ((centred, old), (same, centred)):
        with pytest.warns(UserWarning, match="not copied but newly initialised: quantizer"):
            assert "quantizer.codebook" not in warm_start(target, source)
    wide = tiny_preset(model=tiny_config(quantizer=QuantizerConfig(codes=64, code_width=4)))
    with pytest.warns(UserWarning, match="not copied but newly initialised: quantizer.codebook"):
        assert train(wide, fields, init=old).finished
    with pytest.raises(TrainingError, match=r"fits this preset: .*, given as .*; and \d+ more"):
        warm_start(tiny_tokenizer(generator=type(old.config.generator)(width=32, depth=1)), old)


def test_a_given_tokenizer_can_be_trained():
    mine = tiny_tokenizer(seed=3)
    result = train(
        tiny_preset(steps=5),
        tiny_fields(60),
        tokenizer=mine,
        extra_loss=lambda seen: 0.1 * seen.predicted.square().mean(),
    )
    assert result.tokenizer is mine


def test_a_given_tokenizer_keeps_its_config_and_its_trained_codebook(tmp_path):
    mine = tiny_tokenizer(seed=3, quantizer=QuantizerConfig(codes=16, code_width=4))
    made = mine.quantizer.codebook.clone()
    seen = []

    class Recorder(Callback):
        def on_log(self, run, metrics):
            seen.append(run.stepper.tokenizer.quantizer.codebook.clone())

    still = tiny_preset(steps=1, log_every=1, learning_rate=1e-12, final_learning_rate=1e-12)
    train(still, tiny_fields(60), tokenizer=mine, out=tmp_path, callbacks=[Recorder()])
    assert json.loads((tmp_path / "run.json").read_text())["model"]["quantizer"]["codes"] == 16
    (placed,) = seen
    assert (placed * made).sum(-1).min() < 0.9  # on the first batch
    train(still, tiny_fields(60, seed=1), tokenizer=mine, callbacks=[Recorder()])
    assert (seen[1] * placed).sum(-1).min() > 0.9  # one step away


def test_a_given_tokenizer_excludes_init_and_teacher():
    for beside, named in ({"init": tiny_tokenizer()}, "init"), ({"teacher": "tiny"}, "a teacher"):
        with pytest.raises(ConfigError, match=f"Both a tokenizer and {named} were given"):
            train(tiny_preset(), tiny_fields(60), tokenizer=tiny_tokenizer(), **beside)


def test_fixed_length_runs_have_no_oracle():
    fixed = tiny_config(length_head=LengthHeadConfig(fixed=K))
    result = train(tiny_preset(model=fixed), tiny_fields(60))
    assert result.finished
    assert "r2_centred@10" in result.metrics
    assert result.metrics["length_mean"] == K


def test_a_run_with_a_rate_head_needs_no_oracle_and_saves_its_head(tmp_path):
    model = tiny_config(length_head=LengthHeadConfig(kind="rate", hidden=(16,)))
    preset = tiny_preset(model=model, curriculum={"truncation": "powers-of-two"})
    result = train(preset, tiny_fields(60), out=tmp_path)
    assert result.finished
    lines = [x for x in read_metrics(tmp_path / "metrics.jsonl") if x["kind"] == "training"]
    assert {line["phase"] for line in lines} == {1}
    assert all(line["length"] > 0 and "target_length" not in line for line in lines)
    assert lines[-1]["length"] < lines[0]["length"]
    head = load_folder(tmp_path / "model").length_head.state_dict()
    assert all(
        torch.equal(v, head[n]) for n, v in result.tokenizer.length_head.state_dict().items()
    )


def test_targets_are_logged_from_phase_2_on(tmp_path):
    # Phase 1 ends at step 12, between two lines.
    train(tiny_preset(), tiny_fields(60), out=tmp_path)
    expected = {
        line["step"]: {name for name in line if "target" in name}
        for line in read_metrics(tmp_path / "metrics.jsonl")
        if line["kind"] == "training"
    }
    names = {"target_length", "target_length_spread", "length_target_correlation"}
    assert expected == {step: names if step > 15 else set() for step in range(5, 61, 5)}
    fixed = tiny_config(length_head=LengthHeadConfig(fixed=K))
    train(tiny_preset(steps=5, model=fixed), tiny_fields(60), out=tmp_path / "f")
    assert "target_length" not in read_metrics(tmp_path / "f/metrics.jsonl")[0]


def test_no_data_is_a_named_error():
    with pytest.raises(ConfigError, match="No data"):
        train(tiny_preset())


def test_signal_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    train(tiny_preset(steps=3), tiny_fields(60))
    assert signal.getsignal(signal.SIGTERM) is before


def test_before_the_first_step_signals_have_their_default_effect():
    before, seen = signal.getsignal(signal.SIGTERM), []

    class Interrupt(Callback):
        def on_start(self, run):
            seen.append(signal.getsignal(signal.SIGTERM))
            signal.raise_signal(signal.SIGINT)

    # A shell starts what runs in the background with this signal ignored.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(tiny_preset(steps=3), tiny_fields(60), callbacks=[Interrupt()])
    finally:
        signal.signal(signal.SIGINT, outside)
    assert seen == [before]


def test_the_progress_of_fields_is_reported():
    teacher = TeacherConfig(name="random:tiny", width=192, scale=0.4)
    preset = tiny_preset(steps=1, batch=4, held_out=2, model=tiny_config(teacher=teacher))
    shown = []
    data = "scenes:?n=12&seed=0&size=32"
    train(preset, data, cache="memory", progress=lambda *report: shown.append(report))
    assert shown[0] == ("computing fields", 12, 12)
    assert shown[-1][1:] == (1, 1)


def test_few_images_shrink_the_batch_before_fields_are_computed(tmp_path):
    teacher = TeacherConfig(name="random:tiny", width=192, scale=0.4)
    preset = tiny_preset(steps=2, batch=64, held_out=2, model=tiny_config(teacher=teacher))
    order = []
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: order.append(str(message))
        result = train(
            preset,
            "scenes:?n=12&seed=0&size=32",
            out=tmp_path,
            cache="memory",
            progress=lambda task, *_: order.append(task),
        )
    assert order[0].startswith("There are 11 training images, fewer than a batch of 64")
    assert order[1] == "computing fields"
    assert json.loads((tmp_path / "run.json").read_text())["training"]["batch"] == 8
    resumed = train(
        preset, "scenes:?n=12&seed=0&size=32", out=tmp_path, cache="memory", resume=True
    )
    assert resumed.step == result.step


def test_a_model_below_the_mean_field_is_saved_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="no more than the mean field"):
        train(tiny_preset(steps=1), tiny_fields(60), out=tmp_path)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "> **Warning.** On held-out images this model explains no more than" in card
    for name in ("losses", "lengths", "r2"):  # a run of one step has plots with points
        with Image.open(tmp_path / f"{name}.png") as picture:
            colours = picture.convert("RGB").getcolors(1 << 24)
        assert any(max(colour) - min(colour) > 60 for _, colour in colours), name


def test_metrics_are_logged(tmp_path, caplog, monkeypatch):
    with caplog.at_level(logging.INFO, logger="strop.training"):
        train(tiny_preset(), tiny_fields(60))
    assert "step 60/60 loss" in caplog.text
    assert "step 60 held-out R² centred" in caplog.text


def test_weights_and_biases_gets_all_metrics(tmp_path, monkeypatch):
    calls = []
    run = SimpleNamespace(
        log=lambda scalars, step: calls.append((step, scalars)),
        finish=lambda exit_code: calls.append(("finish", exit_code)),
    )
    wandb = SimpleNamespace(init=lambda **options: calls.append(("init", options)) or run)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    train(tiny_preset(), tiny_fields(60), out=tmp_path, callbacks=[LOGS["wandb"](tmp_path)])
    assert calls[0][1]["name"] == tmp_path.name
    assert calls[0][1]["config"]["training"]["steps"] == 60
    assert calls[-1] == ("finish", 0)
    logged = dict(calls[1:-1])
    assert any("training/loss" in scalars for _, scalars in calls[1:-1])
    assert "validation/r2_centred" in logged[60]


def test_bars_are_shown_unless_logging_is(monkeypatch):
    monkeypatch.setattr(Console, "is_terminal", True)
    drawn = []
    monkeypatch.setattr("strop.progress.bars", lambda console: nullcontext(drawn.append))
    for quiet in (False, True):
        with shown(True, quiet=quiet) as report:
            assert (report is no_progress) == quiet
    with shown(False, quiet=False) as report:
        assert report is no_progress
