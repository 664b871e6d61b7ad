"""The paper's figures, against its source where that is here; and which setting a run is of."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from strop.analysis.metric_info import METRICS
from strop.analysis.paper import MEAN_OVER, OTHERS, cells, setting_of, variant_of, variants
from strop.config import override, to_dict
from strop.model.decoder import DecoderConfig
from strop.training.preset import load_preset


def find(**keys):
    return [cell for cell in cells() if all(getattr(cell, k) == v for k, v in keys.items())]


def trained(variant="strop-s-dinov3-s", data="coco:coco?split=train", images=118_031, **changes):
    """What a model records of its training; `changes` are dotted settings."""
    preset = override(load_preset(variant), changes)
    tables = {key: to_dict(preset)[key] for key in ("objective", "curriculum", "training")}
    return {"data": data, "images": images, **tables}


def part(variant="strop-s-dinov3-s", suite="alignment", **changes):
    return {
        "suite": suite,
        "model": {
            "name": "mine",
            "config": to_dict(load_preset(variant).model),
            "about": {"data": "coco:/data/coco?split=train", "training": trained(variant)},
        },
        "data": "voc:/data/voc?split=val",
        "protocol": "paper",
        "images": 1449,
        **changes,
    }


def test_every_measure_is_known_and_every_variant_is_a_preset():
    assert {cell.measure for cell in cells()} <= METRICS.keys()
    teachers = {"dinov3-s", "dinov3-b", "dinov3-l"}
    assert {cell.variant for cell in cells()} == {*variants(), *teachers, *OTHERS}
    for name in variants():
        assert variant_of(to_dict(load_preset(name).model)) == name


def test_the_short_alignment_table_is_the_mean_of_the_long_one():
    for cell in find(dataset="mean", suite="alignment"):
        each = find(
            suite="alignment",
            trained_on=cell.trained_on,
            variant=cell.variant,
            measure=cell.measure,
        )
        each = [other.value for other in each if other.dataset in MEAN_OVER["alignment"]]
        assert len(each) == 5
        digits = 0.1 if cell.value > 1 else 0.001
        assert sum(each) / 5 == pytest.approx(cell.value, abs=1.01 * digits)


def test_teachers_and_other_tokenizers_are_the_same_in_both_columns():
    for suite in ("segmentation", "multilabel", "depth"):
        both = [
            {
                (cell.variant, cell.representation, cell.dataset, cell.measure): cell.value
                for cell in find(suite=suite, trained_on=trained_on)
                if not cell.variant.startswith("strop-")
            }
            for trained_on in ("coco", "imagenet")
        ]
        assert both[0] == both[1] != {}


def test_multilabel_columns_are_not_the_papers_mixed_up_short_table():
    (coco,) = find(
        suite="multilabel",
        trained_on="coco",
        variant="strop-s-dinov3-s",
        dataset="voc",
        representation="latent",
    )
    (imagenet,) = find(
        suite="multilabel",
        trained_on="imagenet",
        variant="strop-s-dinov3-s",
        dataset="voc",
        representation="latent",
    )
    assert (coco.value, imagenet.value) == (61.5, 57.6)


@pytest.mark.shared
def test_every_figure_is_in_the_papers_source(shared):
    """Each table's numbers, in the order of the source, are those of the tables here."""
    tex = (shared / "paper" / "structure-over-pixels.tex").read_text()
    for label in {cell.table for cell in cells()} - {"text"}:
        start = tex.index(f"\\label{{{label}}}")
        body = tex[tex.index("\\midrule", start) : tex.index("\\end{tabular", start)]
        body = re.sub(r"\\cmidrule(\(\w+\))?\{[^}]*\}", "", body)
        there = sorted(map(float, re.findall(r"(?<![\w-])\d*\.\d+", body)))
        here = sorted(cell.value for cell in cells() if cell.table == label)
        if label == "tab:clevr_curr_vs_fixed":  # the curriculum's rows are in the other table
            here = sorted([*here, 0.931, 94.7, 0.948, 77.8])
        assert here == there, label
    text = {cell.measure: cell.value for cell in cells() if cell.table == "text"}
    assert f"Pearson $r \\approx {text['objects_correlation']}$" in tex
    assert f"(${{\\sim}}{text['training_hours']:.0f}$h each)" in tex
    lengths = f"{text['length_least']:.0f} to {text['length_most']:.0f} tokens"
    assert f"program lengths range from {lengths}" in tex


def test_the_same_setting_has_the_papers_figure():
    setting = setting_of(part())
    assert setting.differs == ()
    assert setting.value("alignment", "cosine") == 0.859
    assert setting.value("alignment", "r2_centred") is None
    assert setting.value("segmentation", "miou", "latent") == 58.9
    assert setting.value("segmentation", "miou", "teacher") == 68.3
    assert setting.value("segmentation", "miou", "raw") is None


def test_columns_of_coco_and_imagenet_are_kept_apart():
    training = trained(data="imagenet:imagenet?split=train", images=1_281_000)
    about = {"data": "imagenet:/data/imagenet?split=train", "training": training}
    other = part()
    other["model"] = {**other["model"], "about": about}
    assert setting_of(other).value("alignment", "cosine") == 0.863


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": 445}, "445 images of 1,449"),
        ({"data": "voc:/data/voc?split=trainaug"}, "the split trainaug"),
        ({"data": "scenes:?n=10"}, "does not measure on scenes"),
        ({"suite": "segmentation", "protocol": "dinov3"}, "protocol is dinov3"),
    ],
)
def test_what_differs_is_named_and_has_no_figure(changes, message):
    setting = setting_of(part(**changes))
    assert any(message in each for each in setting.differs)
    assert setting.value("alignment", "cosine") is None


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"training.steps": 10}, "training.steps is 10, not 500000"),
        ({"training.batch": 512}, "training.batch is 512, not 32"),
        ({"training.weight_average": 0.999}, "training.weight_average is 0.999"),
        ({"training.views": 20}, "training.views is 20"),
        ({"curriculum.probe_fraction": 0.25}, "curriculum.probe_fraction is 0.25"),
        ({"objective.diversity_weight": 0.0}, "objective.diversity_weight is 0.0"),
        ({"data": "coco:coco?split=val"}, "trained on the split val"),
        ({"images": 10_000}, "trained on 10,000 images of 118,287"),
    ],
)
def test_another_training_is_named_and_has_no_figure(training, told):
    run = part()
    run["model"]["about"]["training"] = trained(**training)
    setting = setting_of(run)
    assert any(told in each for each in setting.differs)
    assert setting.value("alignment", "cosine") is None


def test_what_the_paper_leaves_open_may_differ():
    run = part()
    changes = {"training.weight_decay": 0.1, "training.reseed_below": 0.0, "training.seed": 3}
    run["model"]["about"]["training"] = trained(**changes)
    assert setting_of(run).differs == ()


def test_a_model_without_a_record_of_its_training_differs():
    run = part()
    del run["model"]["about"]["training"]
    assert any("does not record" in each for each in setting_of(run).differs)


def test_clevr_counts_with_all_images_of_val_only():
    about = {
        "data": "clevr:clevr?split=train",
        "training": trained("clevr-64", "clevr:clevr?split=train", 69_744),
    }
    run = part("clevr-64", data="clevr:/data/clevr?split=val", images=15_000)
    run["model"]["about"] = about
    assert setting_of(run).value("alignment", "r2") == 0.931
    assert any(
        "500 images of 15,000" in each for each in setting_of({**run, "images": 500}).differs
    )


def test_another_teacher_is_another_variant():
    model = load_preset("strop-s-dinov3-s").model
    other = replace(model, teacher=replace(model.teacher, name="/teachers/mine"))
    assert variant_of(to_dict(other)) is None
    assert variant_of({"no": "config"}) is None


def test_what_the_paper_leaves_open_makes_no_other_variant():
    model = load_preset("strop-m-dinov3-b").model
    other = replace(
        model,
        decoder=DecoderConfig(widths=(8, 8, 8, 8)),
        teacher=replace(model.teacher, scale=0.7),
    )
    assert variant_of(to_dict(other)) == "strop-m-dinov3-b"


def test_a_model_that_does_not_say_what_it_was_trained_on_differs():
    unknown = part()
    unknown["model"] = {**unknown["model"], "about": {}}
    assert any("trained on" in each for each in setting_of(unknown).differs)


def test_other_tokenizers_have_their_rows():
    other = part(suite="segmentation")
    other["model"] = {"name": "flextok-d12-d12-in1k", "config": {}, "about": {}}
    setting = setting_of(other)
    assert setting.differs == ()
    assert setting.value("segmentation", "miou", "latent") == 48.4
