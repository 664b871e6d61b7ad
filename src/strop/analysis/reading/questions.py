"""Questions about scenes in CLEVR's manner, each with the one answer that the scene gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from strop.data.scenes.vocabulary import MAX_OBJECTS
from strop.structure.things import ATTRIBUTES, Thing, Things

Kind = Literal["count", "exist", "query", "compare number", "compare attribute"]
KINDS: tuple[Kind, ...] = ("count", "exist", "query", "compare number", "compare attribute")
ANSWERS = (
    "yes",
    "no",
    *map(str, range(MAX_OBJECTS + 1)),
    *(word for words in ATTRIBUTES.values() for word in words),
)
_TRIES = 50
_SAID = ("size", "color", "material", "shape")  # the order of words in English


@dataclass(frozen=True)
class Question:
    """A question of one kind about the objects that fit one description, or two.

    about      what the objects are like, each as attribute to word
    attribute  what is asked of them, where the kind asks for an attribute
    """

    kind: Kind
    about: tuple[Mapping[str, str], ...]
    attribute: str = ""

    @property
    def template(self) -> str:
        """What is left of the question without the descriptions' words; a guess may know it."""
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

    def answer(self, scene: Things) -> str | None:
        """The answer, or None where the question makes no sense: `the` of none or of several."""
        found = [[thing for thing in scene if _fits(thing, words)] for words in self.about]
        if self.kind == "count":
            return str(len(found[0]))
        if self.kind == "exist":
            return _yes(bool(found[0]))
        if self.kind == "compare number":
            return _yes(len(found[0]) > len(found[1]))
        if any(len(things) != 1 for things in found):
            return None
        held = [getattr(things[0], self.attribute) for things in found]
        if self.kind == "query":
            return held[0]
        return None if found[0] == found[1] else _yes(held[0] == held[1])


@dataclass(frozen=True)
class Asked:
    """A question about the scene at `row` of several, and its answer."""

    row: int
    question: Question
    answer: str


def ask_all(scenes: Sequence[Things], seed: int) -> list[Asked]:
    """One question of each kind about each scene."""
    random = np.random.default_rng(seed)
    return [
        Asked(row, question, answer)
        for row, scene in enumerate(scenes)
        for question, answer in ask_about(scene, random)
    ]


def ask_about(
    scene: Things, random: np.random.Generator, kinds: Sequence[Kind] = KINDS
) -> list[tuple[Question, str]]:
    """A question of each kind with its answer; a kind that the scene allows none of is left out.

    Yes and no are equally likely to be looked for, so that neither is a good guess.
    """
    asked = []
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
            asked.append(kept)
    return asked


def _draw(kind: Kind, scene: Things, random: np.random.Generator) -> Question:
    number = 2 if kind.startswith("compare") else 1
    if kind in ("count", "exist", "compare number"):
        return Question(kind, tuple(_describe(_pick(scene, random), random) for _ in range(number)))
    attribute = str(random.choice(list(ATTRIBUTES)))
    others = [name for name in ATTRIBUTES if name != attribute]
    picked = [_pick(scene, random, made_up=0.0) for _ in range(number)]
    return Question(kind, tuple(_describe(thing, random, others) for thing in picked), attribute)


def _pick(scene: Things, random: np.random.Generator, made_up: float = 0.5) -> Thing:
    """An object of the scene or, with this probability or if there is none, one made up."""
    if scene and random.random() >= made_up:
        return scene[random.integers(len(scene))]
    words = {name: str(random.choice(table)) for name, table in ATTRIBUTES.items()}
    return Thing(**words, x=0.0, y=0.0)


def _describe(
    thing: Thing, random: np.random.Generator, allowed: Sequence[str] = tuple(ATTRIBUTES)
) -> dict[str, str]:
    """One to three of the thing's attributes, in the order in which they are said."""
    number = random.integers(1, min(3, len(allowed)) + 1)
    chosen = set(random.choice(list(allowed), number, replace=False))
    return {name: getattr(thing, name) for name in _SAID if name in chosen}


def _fits(thing: Thing, words: Mapping[str, str]) -> bool:
    return all(getattr(thing, name) == word for name, word in words.items())


def _noun(words: Mapping[str, str], plural: str = "") -> str:
    """`large red metal cube`, or `large red thing` where the shape is open."""
    said = [word for name, word in words.items() if name != "shape"]
    return " ".join([*said, words.get("shape", "thing") + plural])


def _yes(true: bool) -> str:
    return "yes" if true else "no"
