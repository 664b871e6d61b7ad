"""Model folders: exact round trips, and a clear word about everything that is broken."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from kills import kill_savers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import strop
from strop.errors import ConfigError, FormatError, ModelError
from strop.identity import of_tensors
from strop.model import checkpoint
from strop.model.checkpoint import find_folder, load_folder, save_folder
from strop.model.teacher import BUNDLED
from strop.model.tokenizer import Tokenizer


@pytest.fixture
def folder(tokenizer, tmp_path) -> Path:
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Change tensors, and the digest in the config too, so that only the change itself is wrong."""
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    tensors = {name: value for name, value in tensors.items() if value is not None}
    save_file(tensors, path)
    edit_config(folder, weights_digest=of_tensors(tensors))


def as_0_1_0(folder: Path) -> None:
    """The folder as strop 0.1.0 wrote it: no digests, and a setting that was removed since."""
    config = json.loads((folder / "config.json").read_text())
    del config["weights_digest"], config["teacher_digest"], config["model"]["quantizer"]["centred"]
    config["model"]["interpreter"]["joint"] = False
    (folder / "config.json").write_text(json.dumps(config))


def same_state(a: Tokenizer, b: Tokenizer) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


# Round trips.


def test_a_folder_gives_the_same_model_back(make_tokenizer, tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.about = {"name": "mine", "data": "scenes", "steps": 3, "metrics": {"r2": 0.5}}
    tokenizer.save_pretrained(tmp_path)
    loaded = strop.load(tmp_path, device="cpu")
    assert same_state(loaded, tokenizer)
    assert loaded.config == tokenizer.config
    assert loaded.about == tokenizer.about
    assert loaded.identity.codes == tokenizer.identity.codes
    assert not loaded.training


def test_a_folder_holds_config_weights_and_card_and_nothing_else(folder):
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "README.md",
    }
    assert json.loads((folder / "config.json").read_text())["format"] == "strop.model/1"


def test_the_teacher_is_named_and_not_stored(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["model"]["teacher"]["name"] == "random:tiny"
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert not any("teacher" in name for name in weights.keys())  # noqa: SIM118


def test_the_card_tells_the_facts(make_tokenizer, tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: strop\n")
    assert "not been trained" in card
    assert "`random:tiny`" in card
    tokenizer.about = {"data": "scenes", "metrics": {"r2": 0.123456}}
    tokenizer.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "not been trained" not in card
    assert "| r2 | 0.1235 |" in card


def test_half_precision_leaves_the_codebook_exact(tokenizer, tmp_path):
    save_folder(tokenizer, tmp_path, dtype=torch.bfloat16)
    loaded = load_folder(tmp_path)
    assert torch.equal(loaded.quantizer.codebook, tokenizer.quantizer.codebook)
    assert loaded.generator.queries.dtype == torch.float32
    torch.testing.assert_close(
        loaded.generator.queries, tokenizer.generator.queries, atol=0.02, rtol=0.01
    )
    assert loaded.identity.codes != tokenizer.identity.codes  # rounding can change a code


def test_a_folder_of_0_1_0_is_read(folder, tokenizer):
    as_0_1_0(folder)
    loaded = load_folder(folder)
    assert same_state(loaded, tokenizer)
    assert loaded.config == tokenizer.config
    assert loaded.teacher_digest == ""
    loaded._adopt(tokenizer.teacher)
    assert loaded.identity == tokenizer.identity


def test_a_setting_that_was_removed_is_dropped(folder, tokenizer):
    as_0_1_0(folder)
    assert load_folder(folder).config == tokenizer.config


@pytest.mark.parametrize(
    "write",
    [
        "strop.model.checkpoint.save_file",
        "strop.model.card.render",
        "strop.model.checkpoint.write_json",
    ],
)
def test_an_interrupted_save_leaves_the_old_model(
    folder, tokenizer, make_tokenizer, monkeypatch, write
):
    def fail(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(write, fail)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(OSError, match="No space"):
        make_tokenizer(seed=1).save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert same_state(load_folder(folder), tokenizer)


# What is no model.


def no_config(folder):
    (folder / "config.json").unlink()


def half_a_config(folder):
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text[: len(text) // 2])


def a_config_of_bytes(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00\x80")


def a_config_of_digits(folder):
    (folder / "config.json").write_text(f'{{"format": "strop.model/1", "model": {"9" * 5000}}}')


def a_list(folder):
    (folder / "config.json").write_text("[1, 2]")


def a_foreign_config(folder):
    (folder / "config.json").write_text('{"model_type": "vit", "hidden_size": 4}')


def another_kind(folder):
    edit_config(folder, format="strop.program/1")


def a_newer_one(folder):
    edit_config(folder, format="strop.model/2")


def an_absurd_version(folder):
    edit_config(folder, format="strop.model/" + "9" * 5000)


def no_model_in_it(folder):
    edit_config(folder, model=None)


def change_model(folder, **changes):
    values = json.loads((folder / "config.json").read_text())["model"]
    edit_config(folder, model={**values, **changes})


def an_unknown_key(folder):
    change_model(folder, max_lenght=12)


def a_wrong_type(folder):
    change_model(folder, max_length="12")


def a_wrong_value(folder):
    change_model(folder, image_size=100)


def a_removed_setting(folder):
    sizes = {"width": 32, "depth": 2, "heads": 4, "feedforward": 64}
    change_model(folder, interpreter={**sizes, "joint": True})


def a_missing_setting(folder):
    change_model(folder, generator={"width": 32, "depth": 2, "feedforward": 64})


def a_missing_table(folder):
    values = json.loads((folder / "config.json").read_text())["model"]
    edit_config(folder, model={key: value for key, value in values.items() if key != "generator"})


def heads_that_do_not_fit(folder):
    change_model(folder, generator={"width": 32, "depth": 2, "heads": 5, "feedforward": 64})


def a_size_no_machine_has(folder):
    change_model(folder, generator={"width": 2**40, "depth": 2, "heads": 4, "feedforward": 64})


def more_than_the_weights(folder):
    change_model(
        folder, generator={"width": 65_536, "depth": 200, "heads": 4, "feedforward": 65_536}
    )


def a_depth_of_20000(folder):
    change_model(folder, generator={"width": 32, "depth": 20_000, "heads": 4, "feedforward": 64})


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def half_the_weights(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def empty_weights(folder):
    (folder / "model.safetensors").write_bytes(b"")


def a_pickle(folder):
    torch.save({"generator.queries": torch.zeros(2)}, folder / "model.safetensors")


def a_missing_tensor(folder):
    edit_weights(folder, **{"quantizer.codebook": None})


def a_foreign_tensor(folder):
    edit_weights(folder, other=torch.zeros(2))


def a_wrong_shape(folder):
    edit_weights(folder, **{"quantizer.codebook": torch.zeros(63, 8)})


def a_nan(folder):
    edit_weights(folder, **{"quantizer.codebook": torch.full((64, 8), torch.nan)})


def other_weights(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["generator.queries"].view(-1)[0] += 1e-6
    save_file(tensors, path)


def weights_of(dtype):
    def convert(folder):
        edit_weights(folder, **{"quantizer.counts": torch.ones(64).to(dtype)})

    return convert


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_config, r"holds no config.json. Give a folder"),
        (half_a_config, r"not valid JSON"),
        (a_config_of_bytes, r"not valid JSON"),
        (a_config_of_digits, r"not valid JSON"),
        (a_list, r"holds a list, not an object"),
        (a_foreign_config, r"is not a strop model file"),
        (another_kind, r"its format tag is 'strop.program/1'"),
        (a_newer_one, r"newer than this strop reads \(1\). Upgrade strop"),
        (an_absurd_version, r"is not a strop model file"),
        (no_model_in_it, r"does not describe a model"),
        (an_unknown_key, r"Unknown key model.max_lenght. Did you mean 'max_length'\?"),
        (a_wrong_type, r"model.max_length is '12'. Give a whole number"),
        (a_wrong_value, r"image_size is 100"),
        (a_removed_setting, r"model.interpreter.joint is True, a setting that was removed. Use"),
        (a_missing_setting, r"lacks model.generator.heads"),
        (a_missing_table, r"lacks model.generator.depth, model.generator.feedforward, model.gener"),
        (heads_that_do_not_fit, r"generator.width is 32 for 5 heads"),
        (a_size_no_machine_has, r"generator.width is 1099511627776. Give .* at most 65,536"),
        (more_than_the_weights, r"lack generator.layers.10"),
        (a_depth_of_20000, r"generator.depth is 20000"),
        (no_weights, r"lacks model.safetensors. The folder is damaged or incomplete"),
        (half_the_weights, r"model.safetensors cannot be read"),
        (empty_weights, r"model.safetensors cannot be read"),
        (a_pickle, r"model.safetensors cannot be read"),
        (a_missing_tensor, r"lack quantizer.codebook"),
        (a_foreign_tensor, r"hold the unknown other"),
        (a_wrong_shape, r"quantizer.codebook .* \(63, 8\), not \(64, 8\)"),
        (other_weights, r"are not those that config.json names.*give verify=False"),
        (weights_of(torch.int8), r"quantizer.counts .* is torch.int8. Save it as torch.float32 or"),
        (weights_of(torch.bool), r"quantizer.counts .* is torch.bool"),
        (weights_of(torch.int64), r"quantizer.counts .* is torch.int64"),
        (weights_of(torch.complex64), r"quantizer.counts .* is torch.complex64"),
        (weights_of(torch.float8_e4m3fn), r"quantizer.counts .* is torch.float8_e4m3fn"),
        (a_nan, r"quantizer.codebook .* NaN"),
    ],
)
def test_a_broken_or_foreign_folder_is_refused(folder, damage, message):
    damage(folder)
    with pytest.raises(FormatError, match=message) as caught:
        load_folder(folder)
    assert caught.value.remedy


@pytest.mark.parametrize("where", ["header", "tensors"])
def test_a_flipped_bit_in_the_weights_is_refused_or_harmless(folder, tokenizer, where):
    """Weights that load are those that were saved, whichever bit of the file is flipped."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")
    low, high = (0, first) if where == "header" else (first, len(content))
    random = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(60):
        position = int(torch.randint(low, high, (), generator=random))
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(torch.randint(0, 8, (), generator=random))
        path.write_bytes(flipped)
        try:
            loaded = load_folder(folder)
        except FormatError:
            refused += 1
        else:
            assert same_state(loaded, tokenizer)
    assert refused == 60 if where == "tensors" else refused > 40


def test_other_weights_load_without_verification(folder, tokenizer):
    other_weights(folder)
    loaded = load_folder(folder, verify=False)
    assert loaded.generator.queries.view(-1)[0] != tokenizer.generator.queries.view(-1)[0]
    assert same_state(strop.load(folder, device="cpu", verify=False), loaded)


# Names.


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("no-such-model", "model"),
        ("/no/such/folder", "folder"),
        ("a/b/c", "folder"),
        ("./here", "folder"),
    ],
)
def test_an_unknown_model_is_named(name, kind):
    expected = f"There is no {kind} {name!r} .*Give a bundled name, a folder"
    with pytest.raises(ModelError, match=expected):
        strop.load(name)


def test_a_name_that_is_nearly_right_is_guessed():
    with pytest.raises(ModelError, match="There is no model 'scnes'") as caught:
        strop.load("scnes")
    assert "Did you mean 'scenes'" in caught.value.remedy


def test_a_bundled_teacher_is_no_model():
    with pytest.raises(ModelError, match=r"'tiny' is a bundled teacher.*--teacher"):
        strop.load("tiny")


def test_a_folder_of_something_else_is_reported(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "run" / "model")
    with pytest.raises(FormatError, match=r"no config\.json\. Give .*run.model"):
        strop.load(tmp_path / "run")
    with pytest.raises(FormatError, match="holds a teacher"):
        strop.load(BUNDLED / "tiny")


def test_a_device_that_is_not_here_is_reported():
    with pytest.raises(ConfigError, match="cpu or cuda"):
        strop.load("scenes", device="gpu")


def test_no_network_for_a_hub_id(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError) as caught:
        strop.load("someone/their-strop", cache_dir=tmp_path)
    assert "someone/their-strop" in caught.value.problem
    assert "offline, give a folder" in caught.value.remedy


@pytest.mark.parametrize("name", ["bad name/x", "-/-"])
def test_an_impossible_hub_id_is_refused(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError):
        find_folder(name)


def test_nothing_is_ever_unpickled(folder, tokenizer, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", refuse)
    torch.save({"a": 1}, folder / "pytorch_model.bin")
    assert same_state(load_folder(folder), tokenizer)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FormatError, match=r"lacks model\.safetensors"):
        load_folder(folder)


# Replacing a model.


class Faults:
    """Counts every step of a save that can fail, and fails at one of them."""

    def __init__(self, monkeypatch) -> None:
        self.at: int | None = None
        self.count = 0
        self.error: BaseException = OSError("injected")
        self.before = lambda: None
        for owner, name in (
            (os, "link"),
            (os, "fsync"),
            (Path, "replace"),
            (Path, "write_text"),
            (Path, "unlink"),
            (Path, "chmod"),
            (checkpoint, "save_file"),
            (checkpoint, "write_json"),
        ):
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name)))

    def wrapped(self, function):
        def step(*arguments, **options):
            self.before()
            self.count += 1
            if self.at is not None and self.count == self.at:
                raise self.error
            return function(*arguments, **options)

        return step

    def arm(self, at: int | None) -> None:
        self.at, self.count = at, 0


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(lambda _: None, id="plain"),
        as_0_1_0,
    ],
)
def test_a_reader_sees_the_old_model_or_the_new_one(make_tokenizer, tmp_path, monkeypatch, prepare):
    """Between any two steps of a save, and after a fault at any step. The next save succeeds."""
    old, new = make_tokenizer(decoder=None), make_tokenizer(seed=1, decoder=None)
    faults = Faults(monkeypatch)
    seen: list[bool] = []

    def look() -> None:
        found = load_folder(folder)
        seen.append(same_state(found, new))
        assert seen[-1] or same_state(found, old)

    for at in itertools.count(0):
        folder = tmp_path / str(at)
        faults.arm(None)
        old.save_pretrained(folder)
        prepare(folder)
        faults.arm(at)
        faults.error = KeyboardInterrupt() if at % 2 else OSError("injected")
        if at == 0:  # no fault
            faults.before = look
        with contextlib.suppress(OSError, KeyboardInterrupt):
            new.save_pretrained(folder)
        failed = at == 0 or faults.count >= at
        look()
        if at == 0:
            assert seen == sorted(seen), "no way back from the new model to the old one"
            assert (seen[0], seen[-1]) == (False, True)
        faults.before = lambda: None
        faults.arm(None)
        old.save_pretrained(folder)
        assert same_state(load_folder(folder), old)
        names = sorted(path.name for path in folder.iterdir())
        assert names == [
            "README.md",
            "config.json",
            "model.safetensors",
            "preprocessor_config.json",
        ]
        if not failed:
            break
    assert at > 15


def test_a_kill_at_any_time_leaves_a_model_and_no_rubbish(make_tokenizer, tmp_path):
    """`kills.py` does it a thousand times; see benchmarks/results/kills.json."""
    models = [make_tokenizer(seed=seed, decoder=None) for seed in range(2)]
    found = kill_savers(models, tmp_path / "model", 20)
    assert found["lost"] == 0
    assert found["unfinished"] > 5, "most kills should come in the middle of a save"
    assert found["left_by_the_next_save"] == 0


def test_a_reader_meets_no_mixture_while_another_process_saves(folder, tokenizer, make_tokenizer):
    new = make_tokenizer(seed=1)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            save_folder(new, folder)
            save_folder(tokenizer, folder)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(40):
            found = load_folder(folder)
            assert same_state(found, tokenizer) or same_state(found, new)
    finally:
        stop.set()
        writer.join()


def test_saving_over_a_broken_model_makes_a_whole_one(folder, make_tokenizer):
    (folder / "model.safetensors").unlink()
    other = make_tokenizer(seed=1)
    other.save_pretrained(folder)
    assert same_state(load_folder(folder), other)


def test_saving_over_a_file_is_refused(tokenizer, tmp_path):
    (tmp_path / "file.txt").write_text("precious")
    for name in ("file.txt", "file.txt/below"):
        with pytest.raises(ModelError, match=r"is a file, or in one. Name a folder"):
            tokenizer.save_pretrained(tmp_path / name)
    assert (tmp_path / "file.txt").read_text() == "precious"


@pytest.mark.parametrize("name", [None, 3, ["scenes"]])
def test_what_is_no_name_of_a_model_is_refused(name):
    with pytest.raises(ModelError, match=r"is not the name of a model. Give a bundled name"):
        strop.load(name)
