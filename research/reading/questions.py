"""Questions about scenes in the style of CLEVR, with their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scene_objects import ATTRIBUTES, Objects, SceneObject
from strop.scenes.vocabulary import MAX_OBJECTS

Kind = Literal["count", "exist", "query", "compare number", "compare attribute"]
KINDS: tuple[Kind, ...] = ("count", "exist", "query", "compare number", "compare attribute")
ANSWERS = (
    "yes",
    "no",
    *map(str, range(MAX_OBJECTS + 1)),
    *(word for words in ATTRIBUTES.values() for word in words),
)
_TRIES = 50
_ADJECTIVES = ("size", "color", "material", "shape")  # the order of words in English


@dataclass(frozen=True)
class Question:
    """A question of one kind about the objects that fit one or two descriptions.

    about      descriptions: attribute to word
    attribute  the attribute that is queried or compared, for kinds that have one
    """

    kind: Kind
    about: tuple[Mapping[str, str], ...]
    attribute: str = ""

    @property
    def template(self) -> str:
        """The question without the words of its descriptions; a baseline may use it."""
        return f"{self.kind} {self.attribute}".strip()

    @property
    def text(self) -> str:
        """The question in English."""
        one, many = _noun(self.about[0]), _noun(self.about[0], "s")
        if self.kind == "count":
            return f"How many {many} are there?"
        if self.kind == "exist":
            return f"Is there a {one}?"
        if self.kind == "query":
            return f"What {self.attribute} is the {one}?"
        if self.kind == "compare number":
            return f"Are there more {many} than {_noun(self.about[1], 's')}?"
        return f"Does the {one} have the same {self.attribute} as the {_noun(self.about[1])}?"

    def answer(self, scene: Objects) -> str | None:
        """The answer, or None if `the` object does not exist or is not unique."""
        found = [[each for each in scene if _fits(each, words)] for words in self.about]
        if self.kind == "count":
            return str(len(found[0]))
        if self.kind == "exist":
            return _yes(bool(found[0]))
        if self.kind == "compare number":
            return _yes(len(found[0]) > len(found[1]))
        if any(len(objects) != 1 for objects in found):
            return None
        held = [getattr(objects[0], self.attribute) for objects in found]
        if self.kind == "query":
            return held[0]
        return None if found[0] == found[1] else _yes(held[0] == held[1])


@dataclass(frozen=True)
class QuestionAnswer:
    """A question about the scene at `row` of several, and its answer."""

    row: int
    question: Question
    answer: str


def ask_all(scenes: Sequence[Objects], seed: int) -> list[QuestionAnswer]:
    """One question of each kind about each scene."""
    random = np.random.default_rng(seed)
    return [
        QuestionAnswer(row, question, answer)
        for row, scene in enumerate(scenes)
        for question, answer in ask_about(scene, random)
    ]


def ask_about(
    scene: Objects, random: np.random.Generator, kinds: Sequence[Kind] = KINDS
) -> list[tuple[Question, str]]:
    """A question of each kind with its answer; kinds without a valid question are left out.

    The target answer is yes or no with equal probability, so that neither is a good guess.
    """
    found = []
    for kind in kinds:
        wanted = random.choice(["yes", "no"])
        kept: tuple[Question, str] | None = None
        for _ in range(_TRIES):
            question = _draw(kind, scene, random)
            answer = question.answer(scene)
            if answer is None:
                continue
            kept = question, answer
            if answer not in ("yes", "no") or answer == wanted:
                break
        if kept is not None:
            found.append(kept)
    return found


def _draw(kind: Kind, scene: Objects, random: np.random.Generator) -> Question:
    number = 2 if kind.startswith("compare") else 1
    if kind in ("count", "exist", "compare number"):
        return Question(kind, tuple(_describe(_pick(scene, random), random) for _ in range(number)))
    attribute = str(random.choice(list(ATTRIBUTES)))
    others = [name for name in ATTRIBUTES if name != attribute]
    picked = [_pick(scene, random, made_up=0.0) for _ in range(number)]
    return Question(kind, tuple(_describe(each, random, others) for each in picked), attribute)


def _pick(scene: Objects, random: np.random.Generator, made_up: float = 0.5) -> SceneObject:
    """An object of the scene; with probability `made_up`, or in an empty scene, a random one."""
    if scene and random.random() >= made_up:
        return scene[random.integers(len(scene))]
    words = {name: str(random.choice(table)) for name, table in ATTRIBUTES.items()}
    return SceneObject(**words, x=0.0, y=0.0)


def _describe(
    each: SceneObject, random: np.random.Generator, allowed: Sequence[str] = tuple(ATTRIBUTES)
) -> dict[str, str]:
    """One to three attributes of an object, in the order of English adjectives."""
    number = random.integers(1, min(3, len(allowed)) + 1)
    chosen = set(random.choice(list(allowed), number, replace=False))
    return {name: getattr(each, name) for name in _ADJECTIVES if name in chosen}


def _fits(each: SceneObject, words: Mapping[str, str]) -> bool:
    return all(getattr(each, name) == word for name, word in words.items())


def _noun(words: Mapping[str, str], plural: str = "") -> str:
    """`large red metal cube`, or `large red thing` without a shape."""
    adjectives = [word for name, word in words.items() if name != "shape"]
    return " ".join([*adjectives, words.get("shape", "thing") + plural])


def _yes(true: bool) -> str:
    return "yes" if true else "no"
