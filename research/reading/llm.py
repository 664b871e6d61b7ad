"""Scenes read from codes by a language model: the test of the paper's Appendix G."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chat import EndpointOptions
from scene_figure import draw_scenes
from scene_objects import Objects
from scene_pairs import ScenePairs, pairs_of
from scene_scores import NAIVE, naive_scene, scene_tables, score
from scene_text import read_scene, scene_prompt
from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.subject import Subject
from strop.cli.study import run_script
from strop.errors import ConfigError, DataError

ATTEMPTS = 2  # an answer without a scene is requested once more


@dataclass(frozen=True, kw_only=True)
class Options(EndpointOptions):
    """Options of the language model analysis; the defaults are the paper's setting.

    scenes  scenes to read: the last ones of the data
    shots   examples in the prompt, drawn once from all other scenes
    seed    random seed of the examples
    """

    seed: int = 0


def run(subject: Subject, options: Options) -> Findings:
    """Ask the model for the last scenes of the data, with examples from the others."""
    if not options.base_url:
        raise ConfigError(
            "This analysis needs a language model.",
            "Give --base-url and --model of an OpenAI-compatible endpoint. `reader.py` needs none.",
        )
    pairs = pairs_of(subject)
    size = pairs.program.codebook_size
    if len(pairs) < options.scenes + options.shots:
        raise DataError(
            f"{len(pairs)} scenes are too few for {options.scenes} to read and {options.shots} "
            "examples.",
            f"Give at least {options.scenes + options.shots}.",
        )
    pool, test = pairs[: len(pairs) - options.scenes], pairs[len(pairs) - options.scenes :]
    transcript = options.transcript(subject.folder / "llm-transcript.jsonl")
    shots = draw_shots(pool, options.shots, options.seed)
    read = []
    for number, codes in enumerate(test.codes()):
        prompt = scene_prompt(codes, shots, size, think=options.think)
        read.append(ask_for_scene(transcript.ask, prompt))
        subject.progress(f"asking {options.model}", number + 1, len(test))
    scores = {
        options.model: score(read, test.scenes),
        NAIVE: score([naive_scene(pool.scenes, options.seed)] * len(test), test.scenes),
    }
    return Findings(
        numbers={
            "scores": {name: each.numbers() for name, each in scores.items()},
            "codebook_size": size,
            "usage": transcript.usage(),
        },
        tables=scene_tables(scores, size),
        figures={"scenes": draw_scenes(subject.records.images[-len(test) :], test.scenes, read)},
        notes=(
            "Means over the scenes that could be parsed, with 95 % intervals by bootstrap over "
            "scenes. Objects are matched by the least sum of wrong attributes and metres; `matched "
            "by place` uses metres alone, where a guess cannot profit from the matching.",
            "Every request and reply is in llm-transcript.jsonl. A further run sends only requests "
            "that are not in it.",
        ),
    )


def draw_shots(pool: ScenePairs, count: int, seed: int) -> list[tuple[list[int], Objects]]:
    """Examples (codes, scene) drawn from the pool without replacement.

    All prompts share them, so that endpoints can cache the common start of the prompts.
    """
    rows = np.random.default_rng(seed).choice(len(pool), count, replace=False).tolist()
    codes = pool.codes()
    return [(codes[row], pool.scenes[row]) for row in rows]


def ask_for_scene(ask: Callable[[str, int], str], prompt: str) -> Objects | None:
    """The scene in the answer to `ask(prompt, attempt)`, with one retry; None if both fail."""
    for attempt in range(ATTEMPTS):
        scene = read_scene(ask(prompt, attempt))
        if scene is not None:
            return scene
    return None


ANALYSIS = Analysis(
    name="llm", run=run, options=Options, needs=("scene",), roles=("codes", "lengths")
)


if __name__ == "__main__":
    run_script(ANALYSIS)
