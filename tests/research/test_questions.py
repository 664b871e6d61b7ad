"""Questions, answered by hand on a small scene."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from spelled import spelled_pairs

from questions import KINDS, Question, ask_about
from scene_objects import SceneObject

pytestmark = pytest.mark.slow

SCENE = (
    SceneObject("cube", "red", "large", "metal", 0.0, 0.0),
    SceneObject("cube", "blue", "small", "rubber", 1.0, 1.0),
    SceneObject("sphere", "red", "small", "rubber", -1.0, 2.0),
)
RED, CUBE, BALL = {"color": "red"}, {"shape": "cube"}, {"shape": "sphere"}
SMALL_CUBE = {"size": "small", "shape": "cube"}
GREEN = {"color": "green"}


@pytest.mark.parametrize(
    ("question", "text", "answer"),
    [
        (Question("count", (RED,)), "How many red things are there?", "2"),
        (Question("count", (SMALL_CUBE,)), "How many small cubes are there?", "1"),
        (Question("count", (GREEN,)), "How many green things are there?", "0"),
        (Question("exist", (BALL,)), "Is there a sphere?", "yes"),
        (Question("exist", (GREEN,)), "Is there a green thing?", "no"),
        (Question("query", (BALL,), "color"), "What color is the sphere?", "red"),
        (
            Question("query", (SMALL_CUBE,), "material"),
            "What material is the small cube?",
            "rubber",
        ),
        (Question("query", (CUBE,), "color"), "What color is the cube?", None),
        (Question("query", (GREEN,), "shape"), "What shape is the green thing?", None),
        (
            Question("compare number", (CUBE, BALL)),
            "Are there more cubes than spheres?",
            "yes",
        ),
        (Question("compare number", (RED, CUBE)), "Are there more red things than cubes?", "no"),
        (
            Question("compare attribute", (BALL, SMALL_CUBE), "material"),
            "Does the sphere have the same material as the small cube?",
            "yes",
        ),
        (
            Question("compare attribute", (BALL, SMALL_CUBE), "color"),
            "Does the sphere have the same color as the small cube?",
            "no",
        ),
        (
            Question("compare attribute", (BALL, {"size": "small", "color": "red"}), "material"),
            "Does the sphere have the same material as the small red thing?",
            None,  # they are one and the same
        ),
    ],
)
def test_questions_worked_by_hand(question, text, answer):
    assert question.text == text
    assert question.answer(SCENE) == answer


def test_generated_questions_have_one_answer_and_do_not_give_it_away():
    random = np.random.default_rng(0)
    pairs = [pair for scene in spelled_pairs(300).scenes for pair in ask_about(scene, random)]
    assert {question.kind for question, _ in pairs} == set(KINDS)
    for question, answer in pairs:
        assert answer is not None
        assert all(1 <= len(words) <= 3 for words in question.about)
        assert all(question.attribute not in words for words in question.about)


def test_yes_and_no_are_balanced():
    random = np.random.default_rng(1)
    scenes = spelled_pairs(400, most=6).scenes
    for kind in ("exist", "compare number", "compare attribute"):
        answers = Counter(a for s in scenes for _, a in ask_about(s, random, [kind]))
        assert 0.4 < answers["yes"] / answers.total() < 0.6, kind


def test_questions_are_a_function_of_the_seed():
    first, second = (ask_about(SCENE, np.random.default_rng(3)) for _ in range(2))
    assert first == second


def test_a_scene_without_objects_has_no_query():
    assert [q.kind for q, _ in ask_about((), np.random.default_rng(0))] == [
        "count",
        "exist",
        "compare number",
    ]
