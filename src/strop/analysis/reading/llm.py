"""Can a language model read a scene from the codes of its program? The paper's Appendix G."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from strop.errors import ConfigError, DataError
from strop.model.tokenizer import Tokenizer
from strop.structure.chat import Endpoint, Transcript
from strop.structure.pairs import Pairs, pairs_of
from strop.structure.scene_figures import draw_scenes
from strop.structure.scene_tables import numbers_of, paper_table, scene_table
from strop.structure.scene_text import read_scene, scene_prompt
from strop.structure.scoring import naive_scene, score
from strop.structure.study import Encoded, Findings, Job, Study
from strop.structure.things import Things

ATTEMPTS = 2  # one retry on an answer that holds no scene


@dataclass(frozen=True, kw_only=True)
class Options:
    """The endpoint, and the paper's setting of the test.

    base_url  address before /chat/completions
    model     the endpoint's name of the model
    key_env   the variable of the environment that holds the key
    think     ask for reasoning in <think> tags first
    scenes    scenes to be read: the last ones of the data
    shots     examples in the prompt, drawn once from all other scenes
    seed      of the examples
    """

    base_url: str = ""
    model: str = ""
    key_env: str = "OPENAI_API_KEY"
    think: bool = False
    scenes: int = 15
    shots: int = 50
    seed: int = 0


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Ask the model for the last scenes of the data, with examples from the others."""
    if not options.base_url or not options.model:
        raise ConfigError(
            "The study asks a language model, and none was named.",
            "Give --base-url and --model; any OpenAI-compatible endpoint will do. "
            "`strop study MODEL reader` needs none.",
        )
    endpoint = Endpoint(base_url=options.base_url, model=options.model, key_env=options.key_env)
    pairs = pairs_of(encoded)
    if len(pairs) < options.scenes + options.shots:
        raise DataError(
            f"{len(pairs)} scenes are too few for {options.scenes} to read and {options.shots} "
            "examples.",
            f"Give at least {options.scenes + options.shots}.",
        )
    pool, test = pairs[: len(pairs) - options.scenes], pairs[len(pairs) - options.scenes :]
    transcript = Transcript(job.folder / "llm-transcript.jsonl", endpoint)
    shots = draw_shots(pool, options.shots, options.seed)
    read = []
    for number, codes in enumerate(test.codes()):
        prompt = scene_prompt(codes, shots, pairs.program.codebook_size, think=options.think)
        read.append(ask_for_scene(transcript.ask, prompt))
        job.watch(f"asking {options.model}", number + 1, len(test))
    guess = naive_scene(pool.scenes, options.seed)
    scores = {
        options.model: score(read, test.scenes),
        "naive": score([guess] * len(test), test.scenes),
    }
    size = pairs.program.codebook_size
    return Findings(
        numbers={
            "scores": {name: numbers_of(each) for name, each in scores.items()},
            "codebook_size": size,
            "usage": transcript.usage(),
        },
        tables=(scene_table(scores, size), paper_table()),
        figures={"scenes": draw_scenes(encoded.records.images[-len(test) :], test.scenes, read)},
        notes=(
            "Means over the scenes that could be parsed, with 95 % intervals by bootstrap over "
            "scenes. Objects are matched at the least sum of wrong words and metres; `matched by "
            "place` uses metres alone, where a guess cannot profit from its choice of partner.",
            "Every request and reply is in llm-transcript.jsonl; running again asks only what is "
            "not there.",
        ),
    )


def draw_shots(pool: Pairs, count: int, seed: int) -> list[tuple[list[int], Things]]:
    """Examples (codes, scene) drawn from the pool without replacement.

    One draw serves every question, so that endpoints can keep the long common start of the
    prompts.
    """
    rows = np.random.default_rng(seed).choice(len(pool), count, replace=False).tolist()
    codes = pool.codes()
    return [(codes[row], pool.scenes[row]) for row in rows]


def ask_for_scene(ask: Callable[[str, int], str], prompt: str) -> Things | None:
    """The scene that `ask(prompt, attempt)` answers, with one retry; None if both fail."""
    for attempt in range(ATTEMPTS):
        scene = read_scene(ask(prompt, attempt))
        if scene is not None:
            return scene
    return None


STUDY = Study(run=run, options=Options, needs=("scene",))
