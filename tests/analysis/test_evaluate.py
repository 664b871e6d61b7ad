"""The run: refusals before any work, parts that are kept, the same figures every time."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch

from strop import Tokenizer
from strop.analysis.evaluate import evaluate
from strop.analysis.metric_info import METRICS
from strop.analysis.registry import EVALUATIONS
from strop.analysis.subject import Subject
from strop.data.spec import open_dataset
from strop.errors import ConfigError, DataError, ModelError, TeacherError

OFFLINE = ("alignment", "pixels", "rate")


def deterministic(part):
    """A part without what time changes."""
    return {key: part[key] for key in part.keys() - {"seconds", "finished", "timing"}}


@pytest.fixture
def no_work(monkeypatch):
    """Any work is a failure."""

    def refuse(*_args, **_options):
        raise AssertionError("work was started")

    monkeypatch.setattr(Subject, "_encode", refuse)


@pytest.fixture(scope="module")
def finished(tokenizer, folders, tmp_path_factory):
    """A run of the suites that any images allow."""
    out = tmp_path_factory.mktemp("run")
    val, train = folders
    parts = evaluate(tokenizer, [val], out, suites=OFFLINE, train=[train], name="tiny")
    return out, parts


def test_every_part_says_what_it_is_of(finished, folders):
    out, parts = finished
    assert [part["suite"] for part in parts] == list(OFFLINE)
    for part in parts:
        assert (part["data"], part["train"]) == folders
        assert part["model"]["name"] == "tiny"
        assert part["machine"]["device"] == "CPU"
        assert part["seconds"] > 0
        assert set(part["values"]) <= set(METRICS)
        path = out / f"{part['suite']}.json"
        (path,) = out.glob(f"*/{part['suite']}.json")
        stored = json.loads(path.read_text())
        assert stored.pop("format") == "strop.evaluation/1"
        assert stored == part


def test_pictures_lie_beside_the_parts(finished):
    out, _ = finished
    names = {path.stem for path in out.glob("*/*.png")}
    assert names == {"alignment-budgets", "pixels-previews", "rate-lengths"}


def test_without_lpips_weights_a_note_says_so(finished):
    _, parts = finished
    pixels = parts[1]
    assert "LPIPS" in pixels["notes"][0]
    assert "lpips" not in pixels["values"]


def test_finished_parts_are_not_run_again(finished, tokenizer, folders, no_work):
    out, parts = finished
    val, train = folders
    assert evaluate(tokenizer, [val], out, suites=OFFLINE, train=[train], name="tiny") == parts


def test_an_interrupted_run_goes_on_to_the_same_figures(finished, tokenizer, folders, tmp_path):
    _, parts = finished
    val, train = folders
    options = {"train": [train], "name": "tiny"}
    first = evaluate(tokenizer, [val], tmp_path, suites=["alignment"], **options)
    again = evaluate(tokenizer, [val], tmp_path, suites=OFFLINE, **options)
    assert again[0] == first[0]
    for mine, theirs in zip(again, parts, strict=True):
        assert deterministic(mine) == deterministic(theirs)


def test_features_are_computed_once(tokenizer, folders, tmp_path, monkeypatch):
    encoded, encode = [], Subject._encode

    def counted(subject, fields):
        encoded.append(subject.data)
        return encode(subject, fields)

    monkeypatch.setattr(Subject, "_encode", counted)
    evaluate(tokenizer, [folders[0]], tmp_path, suites=OFFLINE)
    assert encoded == [folders[0]]


def test_the_seed_is_part_of_a_run(finished, tokenizer, folders, no_work):
    out, _ = finished
    val, train = folders
    with pytest.raises(ConfigError, match="another seed"):
        evaluate(tokenizer, [val], out, suites=["rate"], train=[train], seed=1)


def test_what_was_measured_without_weights_does_not_pass_for_the_whole(
    finished, tokenizer, folders, tmp_path, no_work
):
    out, _ = finished
    val, train = folders
    with pytest.raises(ConfigError, match="another lpips"):
        evaluate(tokenizer, [val], out, suites=["pixels"], train=[train], lpips=tmp_path / "any")


def test_another_model_does_not_go_on_with_a_run(finished, make_tokenizer, folders, no_work):
    out, _ = finished
    val, train = folders
    with pytest.raises(ConfigError, match="another model"):
        evaluate(make_tokenizer(seed=1), [val], out, suites=["rate"], train=[train])


def changed(tokenizer, part):
    """The same model, with one weight of a part changed."""
    teacher = copy.deepcopy(tokenizer.teacher)
    other = Tokenizer(tokenizer.config, teacher=teacher)
    other.load_state_dict(tokenizer.state_dict())
    with torch.no_grad():
        next(getattr(other, part).parameters()).add_(0.1)
    if part == "teacher":  # its digest is taken when it is loaded
        vars(teacher).pop("digest", None)
    return other.eval()


@pytest.mark.parametrize(
    ("part", "role"),
    [
        ("teacher", "codes"),
        ("generator", "codes"),
        ("quantizer", "codes"),
        ("length_head", "lengths"),
        ("interpreter", "fields"),
        ("decoder", "pictures"),
    ],
)
def test_a_change_of_any_part_of_the_model_is_noticed(
    finished, tokenizer, folders, no_work, part, role
):
    out, _ = finished
    val, train = folders
    other = changed(tokenizer, part)
    with pytest.raises(ConfigError, match=f"another model {role}"):
        evaluate(other, [val], out, suites=["pixels"], train=[train])


def test_another_decoder_changes_only_pixels(finished, tokenizer, folders, no_work):
    out, parts = finished
    val, train = folders
    other = changed(tokenizer, "decoder")
    assert evaluate(other, [val], out, suites=["rate"], train=[train], name="tiny") == parts[2:]


@pytest.mark.parametrize("side", ["data", "train"])
def test_other_data_under_the_same_spec_is_noticed(tokenizer, folders, tmp_path, side):
    copies = [
        shutil.copytree(spec.partition(":")[2], tmp_path / name)
        for spec, name in zip(folders, ("data", "train"), strict=True)
    ]
    val, train = (f"folder:{copy}" for copy in copies)
    evaluate(tokenizer, [val], tmp_path / "run", suites=["rate"], train=[train])
    shutil.copy(tmp_path / side / "01.png", tmp_path / side / "00.png")
    with pytest.raises(ConfigError, match=f"another {side}"):
        evaluate(tokenizer, [val], tmp_path / "run", suites=["rate"], train=[train])


def test_a_teacher_that_is_not_there_is_told_before_any_work(
    make_tokenizer, folders, tmp_path, no_work
):
    config = make_tokenizer().config
    lost = replace(config, teacher=replace(config.teacher, name="/nowhere/teacher"))
    with pytest.raises(TeacherError, match="no folder"):
        evaluate(Tokenizer(lost), [folders[0]], tmp_path, suites=["alignment"])


def test_an_unknown_suite_is_refused(tokenizer, folders, tmp_path, no_work):
    with pytest.raises(ConfigError, match="Did you mean 'alignment'"):
        evaluate(tokenizer, [folders[0]], tmp_path, suites=["aligment"])


def test_data_that_does_not_match_is_refused(tokenizer, folders, tmp_path, no_work):
    val, train = folders
    for data, fit, message in (
        ([], [], "nothing to measure"),
        ([val, train], [train], "2 --data and 1 --train"),
        ([val, val], [], "given twice"),
        ([val], [val], "fitted on and measured"),
    ):
        with pytest.raises(DataError, match=message):
            evaluate(tokenizer, data, tmp_path, suites=["alignment"], train=fit)


def test_a_model_without_a_decoder_has_no_pixels(make_tokenizer, folders, tmp_path, no_work):
    bare = make_tokenizer(decoder=None)
    with pytest.raises(ModelError, match="no pixel decoder"):
        evaluate(bare, [folders[0]], tmp_path, suites=["pixels"])


@pytest.mark.parametrize("suite", ["segmentation", "multilabel", "depth"])
def test_probes_need_truth_and_training_data(suite, tokenizer, folders, tmp_path, no_work):
    val, train = folders
    with pytest.raises(DataError, match="--train"):
        evaluate(tokenizer, ["scenes:?n=4&size=64"], tmp_path, suites=[suite])
    for fit in ([], [train]):  # without truth, training data would not help
        with pytest.raises(DataError, match=f"{suite} needs .* does not have"):
            evaluate(tokenizer, [val], tmp_path, suites=[suite], train=fit)


def test_all_leaves_out_what_cannot_be_and_says_why(make_tokenizer, folders, tmp_path):
    notes = []
    bare = make_tokenizer(decoder=None)
    parts = evaluate(bare, [folders[0]], tmp_path, note=notes.append)
    assert {part["suite"] for part in parts} == {"alignment", "rate"}
    assert len(notes) == len(EVALUATIONS) - 2
    assert any("decoder" in note for note in notes)


def test_images_to_fit_on_may_not_be_measured(tokenizer, folders, tmp_path):
    _, train = folders
    with pytest.raises(DataError, match="also trained on"):
        evaluate(tokenizer, [f"{train}?limit=5"], tmp_path, suites=["alignment"], train=[train])


def test_too_few_images_to_fit_on_are_refused_before_any_work(tokenizer, folders, tmp_path):
    val, train = folders
    with pytest.raises(DataError, match="15 images to fit the baselines on"):
        evaluate(tokenizer, [val], tmp_path, suites=["alignment"], train=[f"{train}?limit=15"])
    assert not list(tmp_path.iterdir())


def test_fields_and_programs_are_those_of_the_tokenizer(tokenizer, folders):
    dataset = open_dataset(folders[0])
    subject = Subject(tokenizer=tokenizer, dataset=dataset, data=folders[0], batch=4)
    images = torch.stack([dataset[row].image for row in range(len(dataset))])
    program = tokenizer.encode(images)
    assert torch.equal(subject.program.codes, program.codes)
    assert torch.equal(subject.program.lengths, program.lengths)
    torch.testing.assert_close(subject.fields, tokenizer.field(images), atol=1e-4, rtol=1e-4)
    assert subject.records.semantic is None
