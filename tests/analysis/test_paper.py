"""The paper's figures, against its source where that is here; and which setting a run is of."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from strop.analysis.metric_info import METRICS
from strop.analysis.paper import OFFICIAL, OTHERS, cells, setting_of, variant_of, variants
from strop.config import to_dict
from strop.model.decoder import DecoderConfig
from strop.training.preset import load_preset


def find(**keys):
    return [cell for cell in cells() if all(getattr(cell, k) == v for k, v in keys.items())]


def part(variant="strop-s-dinov3-s", suite="alignment", **changes):
    return {
        "suite": suite,
        "model": {
            "name": "mine",
            "config": to_dict(load_preset(variant).model),
            "about": {"data": "coco:/data/coco?split=train"},
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
        each = [other.value for other in each if other.dataset in OFFICIAL]
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
    about = {"data": "imagenet:/data/imagenet?split=train"}
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
