"""The paper's prompt, and parsing of the answers of models."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scene_objects import ATTRIBUTES, SceneObject
from scene_text import SHORT, read_scene, scene_prompt, write_scene

pytestmark = pytest.mark.slow

CUBE = SceneObject("cube", "red", "large", "metal", 1.23, -0.45)
TEXT = '{"o":[{"s":"cu","c":"r","z":"L","m":"M","p":[1.23,-0.45]}]}'
words = st.tuples(*(st.sampled_from(table) for table in ATTRIBUTES.values()))
place = st.integers(-300, 300).map(lambda cents: cents / 100)
objects = st.builds(lambda w, x, y: SceneObject(*w, x, y), words, place, place)


def test_the_text_of_a_scene_is_the_example_of_the_prompt():
    assert write_scene((CUBE,)) == TEXT
    assert TEXT in scene_prompt([1], [], 64)


def test_the_short_words_cover_the_vocabulary_and_are_unique():
    for name, table in ATTRIBUTES.items():
        assert set(SHORT[name]) == set(table)
        assert len(set(SHORT[name].values())) == len(table)


def test_the_prompt_holds_settings_legend_shots_and_query_in_order():
    prompt = scene_prompt([7, 5], [([3, 1], (CUBE,))], 64)
    parts = ["codebook size=64, codes in [0,63]", "gray=gr", "JSON only. No prose."]
    parts += [f"Codes: 3 1\nJSON: {TEXT}", "Codes: 7 5\nJSON:"]
    positions = [prompt.index(part) for part in parts]
    assert positions == sorted(positions)
    assert prompt.endswith("JSON:")
    assert "<think>" not in prompt
    assert "JSON only. No prose. Before your final" in scene_prompt([7], [], 64, think=True)


@given(st.lists(objects, max_size=10).map(tuple))
def test_what_is_written_is_read(scene):
    assert read_scene(write_scene(scene)) == scene


@pytest.mark.parametrize(
    "answer",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f'<think>Perhaps {{"o":[]}}? No.</think>\n{TEXT}',
        f"reasoning without its opening tag {{</think>{TEXT}",
        f'A draft: {{"o":[]}}. Final: {TEXT} I hope this helps {{.',
        json.dumps(json.loads(TEXT), indent=2),
        '{"objects":[{"shape":"Cube","color":"red","size":"large","material":"metal",'
        '"position":["1.23","-0.45",0.7]}]}',
    ],
)
def test_answers_with_a_scene(answer):
    assert read_scene(answer) == (CUBE,)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I cannot tell.",
        TEXT[:-3],
        f"<think>{TEXT}",
        TEXT.replace('"cu"', '"pyramid"'),
        TEXT.replace("[1.23,-0.45]", "[1.23]"),
        TEXT.replace("[1.23,-0.45]", "[NaN,0]"),
        TEXT.replace("[1.23,-0.45]", "[true,0]"),
        '{"o":3}',
        '{"o":[3]}',
        "{" * 5000,
        "[" * 100_000,
    ],
)
def test_answers_without_a_scene(answer):
    assert read_scene(answer) is None
