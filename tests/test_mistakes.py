"""Mistakes in Python: each ends with an error of strop that names the mistake and the remedy.

Those on the command line are in `tests/cli/test_mistakes.py`.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import TensorDataset

import strop
from strop.analysis.alignment import evaluate_model
from strop.analysis.evaluate import evaluate
from strop.analysis.frame import run_study
from strop.analysis.prior import load_prior
from strop.data import open_dataset
from strop.data.loader import Loader
from strop.data.record import Record
from strop.data.transforms import fit_record
from strop.errors import DataError, StropError
from strop.images import fit_square, read_image, read_square, save_image
from strop.metrics import cosine, r2
from strop.model.length_head import LengthHeadConfig
from strop.training.preset import load_preset

FITS = r"fit is 'stretch'\. Choose one of 'squash', 'crop', 'pad'"
A_DATASET = r"is not a dataset\. Open one with `strop\.data\.open_dataset`"
LOAD_IT = r"'photos' is not a loaded model\. Load it with `strop\.load`"
UNKNOWN_GPU = r"There is no GPU that torch can use here\. Use the device cpu"

MISTAKES = {
    # Squares.
    "fit of a loader": (lambda m: loader(m, fit="stretch"), FITS),
    "fit of a record": (lambda m: fit_record(record(), 32, "stretch"), FITS),
    "fit of a tensor": (lambda m: fit_square(record().image, 32, "stretch"), FITS),
    "fit of an image": (lambda m: read_square(record().image, 32, "stretch"), FITS),
    "resize": (lambda m: loader(m, resize="slow"), "resize is 'slow'. Choose one of 'exact'"),
    "resize of a record": (lambda m: fit_record(record(), 32, resize="slow"), "resize is 'slow'"),
    "size": (lambda m: fit_record(record(), 0), r"size is 0\. Give a whole number, at least 1"),
    "size as text": (lambda m: loader(m, size="32"), r"size is '32'\. Give a whole number"),
    "a batch size as text": (
        lambda m: loader(m, batch_size="4"),
        "batch_size is '4'. Give a whole",
    ),
    "workers as text": (lambda m: loader(m, workers="2"), "workers is '2'. Give a whole number"),
    # Datasets.
    "a spec in a loader": (
        lambda m: Loader("photos/", batch_size=1, size=8),
        f"'photos/' {A_DATASET}",
    ),
    "a number as data": (lambda m: open_dataset(5), f"An int {A_DATASET}"),
    "a number in a loader": (lambda m: Loader(5, batch_size=1, size=8), f"An int {A_DATASET}"),
    "paths to train on": (lambda m: strop.train("strop-xs", ["a.jpg"] * 8), f"A list {A_DATASET}"),
    "a TensorDataset to train on": (
        lambda m: strop.train("strop-xs", TensorDataset(torch.zeros(4, 3, 8, 8))),
        f"A TensorDataset {A_DATASET}",
    ),
    "an object without classes": (
        lambda m: open_dataset(SimpleNamespace(name="a")),
        "For a dataset of your own, add classes, label_names, __len__, __getitem__",
    ),
    "a record of floats": (
        lambda m: Record(image=torch.rand(3, 4, 5), name="a"),
        r"record a is torch.float32 \(3, 4, 5\)\. Give \(3, H, W\) uint8; `strop.images.to_tensor`",
    ),
    "a record of an array": (
        lambda m: Record(image=np.zeros((4, 5, 3), np.uint8), name="a"),
        "An ndarray is not the image of the record a",
    ),
    "channels last": (
        lambda m: Record(image=torch.zeros(4, 5, 3, dtype=torch.uint8), name="a"),
        r"record a is torch.uint8 \(4, 5, 3\)",
    ),
    "a mask of another size": (
        lambda m: Record(image=record().image, semantic=torch.zeros(2, 2), name="a"),
        r"semantic of the record a is \(2, 2\), its image torch.uint8 \(3, 40, 60\)",
    ),
    "pixels as a record": (lambda m: fit_record(record().image, 32), "A Tensor is not a record"),
    "settings in a list": (
        lambda m: load_preset("strop-nano", ["training.steps=4"]),
        "A list is not a table of settings",
    ),
    "a number as a preset": (
        lambda m: strop.train(5, "a"),
        "An int is not a preset",
    ),
    # Models.
    "a name to erasure": (lambda m: strop.erasure("photos", m.program), LOAD_IT),
    "an edit": (lambda m: strop.erasure(m.tok, m.program, edit="zap"), "edit is 'zap'. Choose one"),
    "no batch": (lambda m: strop.erasure(m.tok, m.program, batch=0), "batch is 0"),
    "no batch of fields": (
        lambda m: m.tok.decode(m.tok.interpret(m.program), batch=0),
        "batch is 0",
    ),
    "a batch of fields as text": (
        lambda m: m.tok.analyse_field(m.tok.field(m.images), batch="2"),
        "batch is '2'",
    ),
    "verify": (lambda m: m.tok.encode(m.images, verify=0.9), r"verify is 0\.9\. Give True"),
    "too few lengths": (
        lambda m: m.tok.encode(m.images, length=[4] * (len(m.images) + 1)),
        "one length per program",
    ),
    "no lengths": (lambda m: m.tok.encode(m.images, length=[]), r"length is \[\]"),
    "a file as a store": (
        lambda m: strop.encode_corpus(str(m.folder), m.folder / "a.parquet"),
        "a store is a folder",
    ),
    "no text before keys": (
        lambda m: strop.encode_corpus(m.folder, m.folder / "a.lance", prefix=None),
        "A NoneType is not a prefix of keys",
    ),
    "images as a corpus": (
        lambda m: strop.encode_corpus(m.images, m.folder / "a.lance"),
        "A Tensor is not the name of data",
    ),
    "a dataset as a corpus": (
        lambda m: strop.encode_corpus(open_dataset(m.folder), m.folder / "a.lance"),
        "A FileDataset is not the name of data",
    ),
    "a name as the model of a corpus": (
        lambda m: strop.encode_corpus(m.folder, m.folder / "a.lance", tokenizer="photos"),
        LOAD_IT,
    ),
    "a model without a name": (
        lambda m: strop.encode_corpus(m.folder, m.folder / "a.lance", tokenizer=m.tok),
        r"The tokenizer has no name\. Give model=",
    ),
    "a store as a file": (lambda m: strop.Program.load("a.lance"), r"strop\.open_store"),
    "a name to evaluate_model": (lambda m: evaluate_model("photos", "scenes:?n=4"), LOAD_IT),
    "a name to evaluate": (lambda m: evaluate("photos", ["scenes:?n=4"], m.folder), LOAD_IT),
    "a name to a study": (lambda m: run_study("photos", "frame", "scenes:", m.folder), LOAD_IT),
    "a file for results": (
        lambda m: run_study(m.tok, "erasure", "scenes:?n=4", m.folder / "0.png"),
        "0.png cannot be created",
    ),
    "one image for two halves": (
        lambda m: run_study(m.tok, "readouts", "scenes:?n=1", m.folder / "out"),
        r"readouts needs at least 2 images; scenes:\?n=1 has 1",
    ),
    "no name of a study": (
        lambda m: run_study(m.tok, None, "scenes:?n=4", m.folder / "out"),
        "There is no study None",
    ),
    "resuming nothing": (
        lambda m: strop.train("strop-nano", m.folder, resume=True),
        "There is no run to resume",
    ),
    "a name to train": (lambda m: strop.train("strop-xs", "a", tokenizer="photos"), LOAD_IT),
    "a name to Tokenizer": (
        lambda m: strop.Tokenizer("photos"),
        r"'photos' is not the config of a model\. Load a model that exists with `strop\.load`",
    ),
    "a model to load": (lambda m: strop.load(m.tok), "A Tokenizer is not the name of a model"),
    "a model of a corpus": (
        lambda m: strop.encode_corpus(str(m.folder), m.folder / "a.lance", model=m.tok),
        "A Tokenizer is not the name of a model",
    ),
    "saving as integers": (
        lambda m: m.tok.save_pretrained(m.folder / "m", dtype=torch.int8),
        r"dtype is torch\.int8\. Give one of float32, float16, bfloat16",
    ),
    "an empty name": (lambda m: strop.load(""), "There is no model ''"),
    "loading as integers": (lambda m: strop.load(m.model, dtype="int8"), "dtype is 'int8'"),
    "a name with blanks": (
        lambda m: m.tok.push_to_hub("a b c"),
        "'a b c' cannot be uploaded to the hub",
    ),
    "moving a model": (lambda m: m.tok.to("cuda"), UNKNOWN_GPU),
    "moving a model by name": (lambda m: m.tok.cuda(), UNKNOWN_GPU),
    "moving programs": (lambda m: m.program.to("cuda"), UNKNOWN_GPU),
    # Images.
    "a length of True": (
        lambda m: m.tok.encode(m.images, length=True),
        r"length is True\. Give a whole number",
    ),
    "a mean length of True": (
        lambda m: m.tok.encode(m.images, mean_length=True),
        r"mean_length is True\. Give a number",
    ),
    "an image on meta": (
        lambda m: m.tok.encode(torch.zeros(3, 8, 8, device="meta")),
        r"\(3, 8, 8\) on meta has no pixels",
    ),
    "images on meta": (
        lambda m: m.tok.encode(torch.zeros(2, 3, 8, 8, device="meta")),
        r"\(2, 3, 8, 8\) on meta has no pixels",
    ),
    "a grey batch": (
        lambda m: m.tok(torch.zeros(1, 1, 128, 128, dtype=torch.uint8)),
        r"called with torch.uint8 \(1, 1, 128, 128\)",
    ),
    "a batch of another size": (
        lambda m: m.tok(torch.zeros(1, 3, 16, 16, dtype=torch.uint8)),
        r"\(1, 3, 16, 16\)\. Give uint8 from 0 to 255, \(B, 3, \d+, \d+\)",
    ),
    "a program as images": (lambda m: m.tok.encode(m.program), "A Program is not an image"),
    "a table": (
        lambda m: m.tok.encode(pandas.DataFrame({"path": ["0.png"]})),
        "A DataFrame is not an image. Give images, or the column",
    ),
    "an address": (
        lambda m: m.tok.encode("https://example.org/a.jpg"),
        r"no file https://example\.org/a\.jpg\. Addresses are not fetched: download it",
    ),
    "a number as an image": (lambda m: m.tok.encode(5), "An int is not an image"),
    "a number of numpy as an image": (lambda m: m.tok.encode(np.uint8(5)), "is not an image"),
    # Programs.
    "an open file of programs": (lambda m: strop.Program.load(sys.stdin), "is not a path"),
    "two indices": (
        lambda m: m.program[0, 1],
        r"\(0, 1\) is not a row\. .* a list, program\[\[0, 1\]\], .* program\.codes\[0, 1\]",
    ),
    "names that are numbers": (lambda m: m.program.named(range(len(m.program))), "one text per"),
    "a letter for each name": (lambda m: m.program.named("abcdef"[: len(m.program)]), "1 names"),
    "qualities in a list": (
        lambda m: strop.Program(**{**vars(m.program), "quality": [0.9]}),
        "A list is not a tensor of qualities",
    ),
    "a row of True": (lambda m: m.program[True], "True is not a row"),
    "a name as a prior": (lambda m: m.program.entropy_bits("photos"), "'photos' is not a prior"),
    "a model as a prior": (lambda m: load_prior(m.tok), "A Tokenizer is not the name of a model"),
    "no samples": (lambda m: load_prior("scenes").sample(0), "count is 0"),
    "codes to a prior": (
        lambda m: load_prior("scenes").surprise(m.program.codes),
        "A Tensor is not a program",
    ),
    "arrays as fields": (
        lambda m: cosine(m.tok.interpret(m.program).numpy(), m.tok.field(m.images)),
        "An ndarray is not a field",
    ),
    "programs as fields": (lambda m: r2(m.program, m.program), "A Program is not a field"),
    "a dtype as a device": (lambda m: m.program.to(torch.float16), "no device torch.float16"),
    "ids as text": (lambda m: m.program.to_lm(bos="<s>"), "'<s>' is not the id of a token"),
    "joining numbers": (lambda m: strop.Program.cat([1]), "An int is not a program"),
}
"""What is done with a model, its programs and a folder, and the message."""


def record() -> Record:
    return Record(image=torch.zeros(3, 40, 60, dtype=torch.uint8), name="a")


def loader(mistakes: SimpleNamespace, **options: object) -> Loader:
    return Loader(open_dataset(mistakes.folder), **{"batch_size": 1, "size": 8, **options})


@pytest.fixture(scope="module")
def made(tokenizer, images, tmp_path_factory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(images[:3]):
        save_image(folder / f"{number}.png", image)
    program = tokenizer.encode(images)
    model = tmp_path_factory.mktemp("saved") / "model"
    tokenizer.save_pretrained(model)
    return SimpleNamespace(
        tok=tokenizer, images=images, program=program, folder=folder, model=model
    )


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake, made):
    do, message = MISTAKES[mistake]
    if message == UNKNOWN_GPU and torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    before = sorted(made.folder.rglob("*"))
    with pytest.raises(StropError, match=message):
        do(made)
    assert sorted(made.folder.rglob("*")) == before


def test_paths_name_datasets_and_records_keep_their_names(made):
    assert len(open_dataset(Path(made.folder))) == 3
    some = open_dataset(f"{made.folder}?limit=2")
    assert made.tok.encode(some).names == made.tok.encode([*some]).names == ("0.png", "1.png")
    assert made.tok.encode([some[0], made.images[0]]).names == ()
    with pytest.raises(DataError, match="no parameter 'limt'"):
        open_dataset(f"{made.folder}/?limt=2")


def test_a_quality_out_of_reach_is_told_once_with_the_count(make_tokenizer, images):
    rated = make_tokenizer(length_head=LengthHeadConfig(kind="rate", hidden=(32,), quality=0.9999))
    with pytest.warns(UserWarning, match="cosine") as told:
        rated.encode(images, quality=0.9999)
    with pytest.warns(UserWarning, match="cosine") as told_of_one:
        rated.encode(images[:1], verify=True)
    assert [str(each.message) for each in (*told, *told_of_one)] == [
        "6 of 6 images are not expected to reach a cosine of 0.9999, even with all 12 tokens.",
        "1 of 1 image does not reach the model's default cosine of 0.9999, "
        "even with all 12 tokens.",
    ]
    assert {each.filename for each in told} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rated.encode(images, quality=1e-6)
        rated.encode(images, length=3)


def test_types_have_the_same_names_for_loading_and_saving(made, tmp_path):
    for name in ("half", "fp16", "float16", torch.float16):
        made.tok.save_pretrained(tmp_path, dtype=name)
        loaded = strop.load(tmp_path, device="cpu", dtype=name)
        assert loaded.precision == "fp16"
        assert loaded.dtype == torch.float32
    assert torch.equal(loaded.generator.queries, made.tok.generator.queries.half().float())


def test_what_is_written_below_home_is_there(made, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("~/a.jsonl", "~/a.parquet", "~b.parquet"):
        made.program.save(name)
        assert strop.Program.load(name) == made.program
    made.tok.save_pretrained("~/model")
    assert strop.load("~/model").identity == made.tok.identity
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["a.jsonl", "a.parquet", "model", "~b.parquet"]


def test_collections_of_images_are_their_images(made):
    paths = [str(made.folder / f"{number}.png") for number in range(3)]
    expected = made.tok.encode(paths)
    array = np.empty(3, dtype=object)
    array[:] = [read_image(path).permute(1, 2, 0).numpy() for path in paths]
    pairs = TensorDataset(torch.stack([read_image(path) for path in paths]), torch.arange(3))
    content = [bytearray(Path(path).read_bytes()) for path in paths]
    for images in (array, pairs, content):
        assert torch.equal(made.tok.encode(images).codes, expected.codes)
    for named in (np.array(paths), pandas.Series(paths), dict.fromkeys(paths).keys()):
        assert made.tok.encode(named) == expected
        assert made.tok.encode(named).names == tuple(paths)


def test_rows_turn_round_and_generators_join(made):
    rows = made.program[::-1]
    assert rows == strop.Program.cat(made.program[[row]] for row in range(len(rows))[::-1])
    assert rows[::-1].codes.tolist() == made.program.codes.tolist()


def test_numbers_of_numpy_count(made):
    mean = made.tok.encode(made.images, mean_length=torch.tensor(4.0))
    assert mean == made.tok.encode(made.images, mean_length=4)
    four = np.int64(4)
    assert loader(made, batch_size=four, size=four).size == 4
    assert load_preset("strop-nano", {"training.batch": four}).training.batch == 4
    pixels = made.tok.decode(made.program, batch=four)
    assert torch.equal(made.tok.decode(made.program), pixels)


def test_fields_of_other_types_are_decoded(made):
    field = made.tok.interpret(made.program)
    assert torch.equal(made.tok.decode(field.double()), made.tok.decode(field))
    assert made.tok.decode(field.half()).dtype == torch.float32


def test_edits_share_tensors_and_leave_their_source_alone(made):
    """Programs say that tensors must not be changed in place; no edit does it."""
    program = made.program
    before = pickle.dumps([program.codes, program.lengths, program.erased])
    assert program.truncate(1).codes is program.codes
    assert "Do not\n    change a tensor in place" in strop.Program.__doc__
    for edited in (program.replace(0, 1), program.erase(1), program.truncate(1).permute([0])):
        assert edited.codes.shape == program.codes.shape
    assert pickle.dumps([program.codes, program.lengths, program.erased]) == before


def test_a_model_is_shown_in_one_line(make_tokenizer):
    tokenizer = make_tokenizer()
    tokenizer.about = {"name": "mine"}
    assert repr(tokenizer) == (
        "Tokenizer('mine', K=12, codes=64, teacher='random:tiny', device='cpu', precision='fp32')"
    )
