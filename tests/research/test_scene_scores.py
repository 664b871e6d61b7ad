"""Scene metrics, against numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scene_objects import ATTRIBUTES, SceneObject, objects_of
from scene_scores import match, naive_scene, score

pytestmark = pytest.mark.slow

CUBE = SceneObject("cube", "red", "large", "metal", 1.0, 2.0)
BALL = SceneObject("sphere", "blue", "small", "rubber", -1.0, 0.0)
words = st.tuples(*(st.sampled_from(table) for table in ATTRIBUTES.values()))
place = st.floats(-3, 3, allow_nan=False)
objects = st.builds(lambda w, x, y: SceneObject(*w, x, y), words, place, place)
scenes = st.lists(objects, min_size=1, max_size=6).map(tuple)


def test_a_scene_read_with_one_object_too_many():
    # The cube is read two metres off with a wrong color, the ball with a wrong size and material,
    # 0.3 and 0.4 m off; a third object is made up.
    read = (
        SceneObject("cube", "blue", "large", "metal", 1.0, 0.0),
        SceneObject("sphere", "blue", "large", "metal", -0.7, 0.4),
        SceneObject("cylinder", "gray", "large", "metal", 3.0, -3.0),
    )
    scores = score([read], [(CUBE, BALL)])
    assert scores.failures == 0
    assert scores.rows["count_error"] == [1]
    assert scores.rows["attribute_accuracy"] == pytest.approx([(3 / 4 + 2 / 4) / 2])
    assert scores.rows["position_mse"] == pytest.approx([(4 + 0.09 + 0.16) / 2])
    assert scores.rows["position_mae"] == pytest.approx([(2 + 0.7) / 2])
    assert scores.attributes["color"] == [0.5]
    assert scores.attributes["shape"] == [1.0]
    assert scores.attributes["material"] == [0.5]


def test_matching_by_place_finds_swapped_words():
    swapped = (CUBE._replace(x=-1.0, y=0.0), BALL._replace(x=1.0, y=2.0))
    near = (CUBE._replace(x=-0.1, y=0.8), BALL._replace(x=0.1, y=1.2))
    for read in (swapped, near):
        scores = score([read], [(CUBE, BALL)])
        assert scores.rows["attribute_accuracy"] == [1.0], "words decide where all are wrong"
        assert scores.rows["placed_accuracy"] == [0.0]


def test_parse_failures_are_counted_and_in_no_average():
    scores = score([None, (CUBE,)], [(CUBE, BALL), (CUBE,)])
    assert scores.failures == 1
    assert scores.intervals()["count_error"].value == 0
    empty = score([()], [(CUBE,)])
    assert empty.rows["count_error"] == [1]
    assert math.isnan(empty.intervals()["attribute_accuracy"].value)


def test_intervals_hold_the_mean_and_shrink_to_it_when_all_agree():
    read = [(CUBE,), (CUBE, BALL), (CUBE, BALL, BALL)] * 5
    interval = score(read, [(CUBE,)] * 15).intervals()["count_error"]
    assert interval.low < interval.value == 1.0 < interval.high
    assert score([(CUBE,)] * 3, [(BALL,)] * 3).intervals()["attribute_accuracy"] == (0, 0, 0)


@given(scenes)
def test_a_perfect_reading_in_any_order_scores_perfectly(scene):
    scores = score([scene[::-1]], [scene])
    assert scores.rows["attribute_accuracy"] == [1.0]
    assert scores.rows["position_mse"] == [0.0]
    assert scores.rows["count_error"] == [0]


@given(scenes, scenes)
def test_the_matching_is_the_cheapest_of_all(read, truth):
    from itertools import permutations

    def cost(pairs):
        return sum(
            sum(a != b for a, b in zip(read[i].words, truth[j].words, strict=True))
            + math.hypot(read[i].x - truth[j].x, read[i].y - truth[j].y)
            for i, j in pairs
        )

    read, truth = read[:4], truth[:4]
    pairs = match(read, truth)
    few = min(len(read), len(truth))
    assert len(pairs) == few
    if len(read) <= len(truth):
        best = min(cost(enumerate(p)) for p in permutations(range(len(truth)), few))
    else:
        orders = permutations(range(len(read)), few)
        best = min(cost((i, j) for j, i in enumerate(p)) for p in orders)
    assert cost(pairs) == pytest.approx(best)


def test_the_naive_scene_has_the_pools_count_words_and_places():
    pool = [(CUBE, BALL, BALL._replace(x=0.5)), (CUBE,)] * 4
    guess = naive_scene(pool)
    assert guess == naive_scene(pool)
    assert len(guess) == 2
    assert sorted(each.shape for each in guess) == ["cube", "sphere"]
    assert sorted(each.x for each in guess) == [0.5, 1.0]


def test_a_naive_scene_scores_what_the_paper_gives_one():
    # Objects as CLEVR has them: 3 to 10, words uniform, places within [-3, 3].
    random = np.random.default_rng(0)

    def draw():
        return tuple(
            SceneObject(*(str(random.choice(table)) for table in ATTRIBUTES.values()), *place)
            for place in random.uniform(-3, 3, (random.integers(3, 11), 2))
        )

    pool, test = [draw() for _ in range(50)], [draw() for _ in range(200)]
    scores = score([naive_scene(pool)] * 200, test).intervals()
    assert scores["count_error"].value == pytest.approx(2.27, abs=0.4)
    assert scores["attribute_accuracy"].value == pytest.approx(0.568, abs=0.06)
    assert scores["position_mse"].value == pytest.approx(3.84, abs=1)
    assert scores["position_mae"].value == pytest.approx(2.22, abs=0.35)
    assert scores["placed_accuracy"].value == pytest.approx(
        (1 / 3 + 1 / 8 + 1 / 2 + 1 / 2) / 4, abs=0.04
    )


def test_objects_of_a_scene():
    entry = {
        "shape": "cube",
        "color": "red",
        "size": "large",
        "material": "metal",
        "3d_coords": [1.0, 2.0, 0.7],
    }
    assert objects_of({"objects": [entry]}) == (CUBE,)
