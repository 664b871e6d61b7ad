"""Figures of probes against libraries, and against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.analysis.metric_info import METRICS
from strop.analysis.probes.scores import (
    class_iou,
    class_precision,
    count_pixels,
    depth_errors,
    depth_scores,
    difference,
    mean_average_precision,
    multilabel_scores,
    segmentation_scores,
)
from strop.data.record import VOID


def masks(seed: int, classes: int = 5, void: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, classes, (6, 16, 16), generator=random)
    predicted = torch.where(
        torch.rand(truth.shape, generator=random) < 0.5,
        truth,
        torch.randint(0, classes, truth.shape, generator=random),
    )
    if void:
        truth[torch.rand(truth.shape, generator=random) < 0.2] = VOID
    return predicted, truth


# Segmentation.


@pytest.mark.parametrize("seed", range(3))
def test_segmentation_agrees_with_torchmetrics(seed):
    from torchmetrics.functional.classification import (
        multiclass_accuracy,
        multiclass_jaccard_index,
    )

    predicted, truth = masks(seed)
    values = segmentation_scores(count_pixels(predicted, truth, 5), draws=2)["values"]
    options = {"num_classes": 5, "ignore_index": VOID}
    expected = {
        "miou": multiclass_jaccard_index(predicted, truth, average="macro", **options),
        "pixel_accuracy": multiclass_accuracy(predicted, truth, average="micro", **options),
        "class_accuracy": multiclass_accuracy(predicted, truth, average="macro", **options),
    }
    for name, value in expected.items():
        assert values[name] == pytest.approx(100 * float(value), abs=1e-4)


def test_void_pixels_count_nowhere():
    truth = torch.tensor([[[0, 0], [VOID, VOID]]])
    right = count_pixels(torch.tensor([[[0, 0], [1, 0]]]), truth, 2)
    assert right[:, 2].tolist() == [[2, 0]]
    assert segmentation_scores(right, draws=2)["values"] == {
        "miou": 100,
        "pixel_accuracy": 100,
        "class_accuracy": 100,
    }


def test_a_class_nobody_saw_or_told_is_left_out_and_one_wrongly_told_is_not():
    truth = torch.tensor([[[0, 0, 0, 1]]])
    predicted = torch.tensor([[[0, 0, 2, 1]]])
    counts = count_pixels(predicted, truth, 4)
    np.testing.assert_allclose(class_iou(counts), [2 / 3, 1, 0, np.nan])
    scores = segmentation_scores(counts, draws=2)
    assert scores["classes"] == 3
    assert scores["iou"][3] is None
    assert scores["values"]["miou"] == pytest.approx(100 * (2 / 3 + 1 + 0) / 3)
    assert scores["values"]["class_accuracy"] == pytest.approx(100 * (2 / 3 + 1) / 2)


def test_masks_that_are_all_void_have_no_figure():
    truth = torch.full((2, 4, 4), VOID)
    scores = segmentation_scores(count_pixels(torch.zeros_like(truth), truth, 3), draws=2)
    assert all(np.isnan(value) for value in scores["values"].values())
    assert scores["classes"] == 0


def test_totals_are_over_the_dataset_not_means_over_images():
    truth = torch.tensor([[[0, 0, 0, 1]], [[1, 1, 1, 1]]])
    predicted = torch.tensor([[[0, 0, 0, 0]], [[1, 1, 1, 1]]])
    counts = np.concatenate(
        [count_pixels(predicted[:1], truth[:1], 2), count_pixels(predicted[1:], truth[1:], 2)]
    )
    values = segmentation_scores(counts, draws=2)["values"]
    assert values["miou"] == pytest.approx(100 * (3 / 4 + 4 / 5) / 2)
    assert values["pixel_accuracy"] == pytest.approx(100 * 7 / 8)


def test_intervals_are_seeded_and_hold_the_value():
    predicted, truth = masks(0)
    counts = count_pixels(predicted, truth, 5)
    scores = segmentation_scores(counts, seed=1, draws=100)
    assert scores == segmentation_scores(counts, seed=1, draws=100)
    low, high = scores["intervals"]["pixel_accuracy"]
    assert low < scores["values"]["pixel_accuracy"] < high


# Multi-label.


def ranking(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return np.stack([scores, truth], axis=1)


def average_precision(scores: np.ndarray, truth: np.ndarray, points: int = 0) -> float:
    return float(class_precision(ranking(scores[:, None], truth[:, None]), points=points)[0])


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 0.5, 2.0]), st.booleans()),
        min_size=1,
        max_size=30,
    ).filter(lambda rows: any(positive for _, positive in rows))
)
def test_average_precision_agrees_with_scikit_learn_also_with_ties(rows):
    from sklearn.metrics import average_precision_score

    scores, truth = map(np.array, zip(*rows, strict=True))
    assert average_precision(scores, truth) == pytest.approx(
        average_precision_score(truth, scores), abs=1e-12
    )


def test_map_agrees_with_torchmetrics():
    from torchmetrics.functional.classification import multilabel_average_precision

    random = torch.Generator().manual_seed(0)
    scores = torch.rand(40, 6, generator=random)
    truth = torch.rand(40, 6, generator=random) < 0.3
    expected = multilabel_average_precision(scores, truth.long(), num_labels=6, average="macro")
    found = mean_average_precision(ranking(scores.numpy(), truth.numpy()))
    assert found == pytest.approx(float(expected), abs=1e-6)


def test_eleven_points_by_hand():
    # Ranked: right, wrong, right. Precision 1 up to recall .5, then 2/3.
    scores, truth = np.array([3.0, 2.0, 1.0]), np.array([True, False, True])
    assert average_precision(scores, truth) == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    eleven = average_precision(scores, truth, points=11)
    assert eleven == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)


def test_classes_without_positives_are_left_out_and_the_number_of_the_others_is_reported():
    scores = np.array([[0.9, 0.1], [0.2, 0.7]])
    truth = np.array([[True, False], [False, False]])
    assert np.isnan(class_precision(ranking(scores, truth))[1])
    found = multilabel_scores(ranking(scores, truth), draws=5)
    assert found["values"] == {"map": 100, "map_11": 100}
    assert found["classes"] == 1
    assert found["average_precision"] == [100, None]


def test_one_image_and_constant_scores():
    one = multilabel_scores(np.array([[[0.3, 0.1], [1.0, 0.0]]]), draws=5)
    assert one["values"]["map"] == 100
    truth = np.arange(10) < 3
    assert average_precision(np.zeros(10), truth) == pytest.approx(0.3)


# Depth.


def test_depth_by_hand_and_pixels_of_zero_depth_do_not_count():
    truth = torch.tensor([[[2.0, 4.0], [0.0, 1.0]]])
    predicted = torch.tensor([[[3.0, 4.0], [9.0, 1.6]]])
    scores = depth_scores(depth_errors(predicted, truth), draws=2)
    assert scores["values"] == pytest.approx(
        {
            "depth_rmse": ((1 + 0 + 0.36) / 3) ** 0.5,
            "abs_rel": 100 * (0.5 + 0 + 0.6) / 3,
            "delta1": 100 / 3,  # ratios 1.5, 1 and 1.6
            "delta2": 200 / 3,  # below 1.5625
            "delta3": 100,  # below 1.953
        },
        rel=1e-6,
    )
    assert scores["images"] == 1


def test_depth_is_averaged_over_pixels():
    truth = torch.ones(2, 1, 4)
    truth[1, 0, 1:] = 0
    predicted = torch.full((2, 1, 4), 2.0)
    predicted[0] = 1.0
    errors = depth_errors(predicted, truth)
    assert depth_scores(errors, draws=2)["values"]["depth_rmse"] == pytest.approx((1 / 5) ** 0.5)


def test_an_image_without_known_depth_is_left_out():
    truth = torch.ones(2, 2, 2)
    truth[0] = 0
    scores = depth_scores(depth_errors(truth, truth), draws=2)
    assert scores["images"] == 1
    assert scores["values"]["depth_rmse"] == 0
    nothing = depth_scores(depth_errors(truth[:1], truth[:1]))
    assert nothing["images"] == 0
    assert np.isnan(nothing["values"]["depth_rmse"])


def test_predictions_of_no_depth_are_clipped_rather_than_infinite():
    scores = depth_scores(depth_errors(torch.zeros(1, 2, 2), torch.ones(1, 2, 2)), draws=2)
    assert np.isfinite(list(scores["values"].values())).all()
    assert scores["values"]["delta3"] == 0


def test_every_figure_is_a_measure():
    predicted, truth = masks(0)
    named = {
        *segmentation_scores(count_pixels(predicted, truth, 5), draws=2)["values"],
        *multilabel_scores(np.ones((2, 2, 1)), draws=2)["values"],
        *depth_scores(depth_errors(truth.float(), truth.float()), draws=2)["values"],
    }
    assert named <= set(METRICS)


def test_a_difference_is_paired_by_image():
    random = np.random.default_rng(0)
    base = random.normal(size=200)
    mean = {"mean": (lambda rows: float(rows.mean()), 100)}
    found = difference(mean, base + 0.01, base)
    assert found["values"]["mean"] == pytest.approx(1)
    assert found["intervals"]["mean"] == pytest.approx([1, 1]), "equal noise cancels"
    low, high = difference(mean, random.permutation(base), base)["intervals"]["mean"]
    assert low < 0 < high
