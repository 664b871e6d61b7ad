"""Runs that are killed, stopped, cut short or out of space."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import tiny_config, tiny_fields, tiny_preset

from strop.errors import ConfigError, FormatError, TrainingError
from strop.model.checkpoint import load
from strop.model.teacher import TeacherConfig
from strop.training import run_checkpoint as checkpoints
from strop.training.callbacks import Callback, read_metrics
from strop.training.loop import train
from strop.training.run_checkpoint import checkpoint_paths, latest_checkpoint, read_checkpoint

HERE = Path(__file__).parent


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(checkpoint_paths(folder / "checkpoints")[0]).tensors


def run_script(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(HERE / name), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_killed_at_ten_steps_across_all_phases_ends_bit_equal(tmp_path):
    # 60 steps: phases end at 12, 18, 24 and 30, checkpoints every 3.
    draw = random.Random(4)
    steps = sorted(
        draw.sample(range(2, 12), 3)
        + draw.sample(range(12, 18), 2)
        + draw.sample(range(18, 24), 2)
        + draw.sample(range(24, 30), 1)
        + draw.sample(range(30, 60), 2)
    )
    killed = run_script("killed_run.py", tmp_path / "killed", *steps)
    assert killed.returncode == 0, killed.stderr[-2000:]
    whole = run_script("killed_run.py", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr[-2000:]

    ours, theirs = final_state(tmp_path / "killed"), final_state(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different
    assert {"model.quantizer.centre", "averaged.quantizer.centre"} <= ours.keys()
    assert "optimizer.generator.layers.0.q.weight.momentum" in ours
    models = [load_file(tmp_path / run / "model/model.safetensors") for run in ("killed", "whole")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[1])
    lines = [read_metrics(tmp_path / run / "metrics.jsonl") for run in ("killed", "whole")]
    for a, b in zip(*lines, strict=True):
        a.pop("images_per_second", None), b.pop("images_per_second", None)
        assert a == b


def test_sigterm_checkpoints_and_exits_zero(tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from tiny_training import *\n"
        "from strop.training.loop import train\n"
        "r = train(tiny_preset(steps=100_000, log_every=1), tiny_fields(60), out=sys.argv[1])\n"
        "assert not r.finished\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), str(HERE)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    metrics = tmp_path / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while len(read_metrics(metrics)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    (path,) = checkpoint_paths(tmp_path / "checkpoints")
    assert read_checkpoint(path).step == read_metrics(metrics)[-1]["step"]


class StopAt(Callback):
    """Ends a run as a signal would, after some step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_log(self, run, metrics) -> None:
        if run.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_truncated_checkpoint_is_recognised_and_an_earlier_one_used(tmp_path):
    preset, fields = tiny_preset(checkpoint_every=50_000), tiny_fields(60)
    stopped = train(preset, fields, out=tmp_path, callbacks=[StopAt(20)])
    assert not stopped.finished
    latest, before = checkpoint_paths(tmp_path / "checkpoints")
    content = latest.read_bytes()
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 255])
    damages = (
        content[:middle],
        content[:4],
        b"",
        content[:middle] + flipped + content[middle + 1 :],
    )
    for damage in damages:
        latest.write_bytes(damage)
        with pytest.raises(FormatError, match="damaged"):
            read_checkpoint(latest)
        found, problems = latest_checkpoint(tmp_path / "checkpoints")
        assert found.path == before
        assert str(latest) in problems[0]
    with pytest.warns(UserWarning, match="Continuing from"):
        resumed = train(preset, fields, out=tmp_path, resume=True)
    assert resumed.finished
    train(preset, fields, out=tmp_path / "whole")
    ours, theirs = final_state(tmp_path), final_state(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_that_lacks_a_setting_resumes_with_its_default(tmp_path):
    preset, fields = tiny_preset(steps=10), tiny_fields(60)
    train(preset, fields, out=tmp_path, callbacks=[StopAt(5)])
    last = read_checkpoint(checkpoint_paths(tmp_path / "checkpoints")[0])
    del last.about["preset"]["model"]["quantizer"]["centred"]
    checkpoints.write_checkpoint(last.path.parent, last.tensors, last.step, last.about, keep=1)
    assert train(preset, fields, out=tmp_path, resume=True).finished

    last.about["preset"]["curriculum"]["oracle"] = "price"
    checkpoints.write_checkpoint(last.path.parent, last.tensors, 20, last.about, keep=1)
    with pytest.raises(ConfigError, match=r"Unknown key checkpoint\.curriculum\.oracle"):
        train(preset, fields, out=tmp_path, resume=True)


def test_a_run_without_a_complete_checkpoint_is_an_error(tmp_path):
    preset, fields = tiny_preset(steps=10), tiny_fields(60)
    train(preset, fields, out=tmp_path)
    for path in checkpoint_paths(tmp_path / "checkpoints"):
        path.write_bytes(b"short")
    with pytest.raises(TrainingError, match=r"No checkpoint in .* can be used"):
        train(preset, fields, out=tmp_path, resume=True)


def test_disk_full_is_a_clear_error_and_the_last_checkpoint_survives(tmp_path, monkeypatch):
    real = checkpoints.save_file
    calls = []

    def fills_up(tensors, path, metadata):
        calls.append(path)
        real(tensors, path, metadata)
        if len(calls) == 3:
            Path(path).write_bytes(Path(path).read_bytes()[:1000])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoints, "save_file", fills_up)
    with pytest.raises(
        TrainingError, match=r"No space left.*The last good checkpoint is .*00000012"
    ):
        train(tiny_preset(checkpoint_every=50_000), tiny_fields(60), out=tmp_path)
    found, problems = latest_checkpoint(tmp_path / "checkpoints")
    assert found.step == 12
    assert not problems
    assert not list((tmp_path / "checkpoints").glob(".*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_is_a_named_error(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="cannot be created"):
            train(tiny_preset(), tiny_fields(60), out=tmp_path / "run")
    finally:
        tmp_path.chmod(0o700)


def test_a_path_under_a_file_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        train(tiny_preset(), tiny_fields(60), out=tmp_path / "file/run")


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    train(tiny_preset(steps=10), tiny_fields(60), out=tmp_path)
    with pytest.warns(UserWarning, match="no checkpoint in .*: a new run starts"):
        train(tiny_preset(steps=2), tiny_fields(60), out=tmp_path / "new", resume=True)
    with pytest.raises(TrainingError, match=r"already holds a run.*--resume"):
        train(tiny_preset(steps=10), tiny_fields(60), out=tmp_path)


def test_other_settings_are_refused_by_name(tmp_path):
    train(tiny_preset(steps=10), tiny_fields(60), out=tmp_path)
    with pytest.raises(TrainingError, match=r"training\.learning_rate was 0\.003, now 0\.1"):
        train(tiny_preset(steps=10, learning_rate=0.1), tiny_fields(60), out=tmp_path, resume=True)
    finished = train(tiny_preset(steps=10, log_every=9), tiny_fields(60), out=tmp_path, resume=True)
    assert finished.finished
    assert finished.metrics


def test_other_images_are_refused_by_their_number(tmp_path):
    train(tiny_preset(steps=10), tiny_fields(60), out=tmp_path)
    with pytest.raises(TrainingError, match="images was 54, now 194"):
        train(tiny_preset(steps=10), tiny_fields(200), out=tmp_path, resume=True)


def test_other_data_with_as_many_images_is_refused_by_name(tmp_path):
    teacher = TeacherConfig(name="random:tiny", width=192, scale=0.4)
    preset = tiny_preset(steps=4, held_out=2, model=tiny_config(teacher=teacher))
    data = "scenes:?n=12&seed={}&size=32"
    train(preset, data.format(0), out=tmp_path, cache="memory")
    with pytest.raises(TrainingError, match=r"data was scenes:\?n=12&seed=0.*now scenes:.*seed=1"):
        train(preset, data.format(1), out=tmp_path, cache="memory", resume=True)


def test_a_finished_run_keeps_later_changes_of_its_model(tmp_path):
    done = train(tiny_preset(steps=10), tiny_fields(60), out=tmp_path)
    done.tokenizer.about["lengths"] = "fitted again"
    done.tokenizer.save_pretrained(tmp_path / "model")
    again = train(tiny_preset(steps=10), tiny_fields(60), out=tmp_path, resume=True)
    assert again.finished
    assert again.metrics == pytest.approx(done.metrics)
    assert load(tmp_path / "model").about["lengths"] == "fitted again"
    # A missing model is written again.
    shutil.rmtree(tmp_path / "model")
    train(tiny_preset(steps=10), tiny_fields(60), out=tmp_path, resume=True)
    assert "lengths" not in load(tmp_path / "model").about


def test_a_run_of_another_kind_is_refused(tmp_path):
    folder = tmp_path / "checkpoints"
    kept = {"weight": torch.zeros(3)}
    checkpoints.write_checkpoint(folder, kept, 5, {}, keep=1, kind="other-checkpoint")
    with pytest.raises(
        TrainingError, match=r"not a strop checkpoint .*strop\.other-checkpoint.* another --out"
    ):
        train(tiny_preset(steps=10), tiny_fields(60), out=tmp_path, resume=True)
