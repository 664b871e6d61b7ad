"""Scenes as the short text of the paper's prompt, and parsing of the answers of models.

Appendix G; Table 17.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scene_objects import Objects, SceneObject

SHORT: dict[str, dict[str, str]] = {
    "color": {
        "gray": "gr",
        "red": "r",
        "blue": "bl",
        "green": "gn",
        "brown": "br",
        "purple": "pr",
        "cyan": "cy",
        "yellow": "y",
    },
    "shape": {"cube": "cu", "sphere": "sp", "cylinder": "cy"},
    "size": {"small": "S", "large": "L"},
    "material": {"rubber": "R", "metal": "M"},
}
KEYS = {"shape": "s", "color": "c", "size": "z", "material": "m"}
PROMPT = """\
Predict a CLEVR scene (3-10 objects) from integer codes produced by a visual tokenizer \
(codebook size={size}, codes in [0,{last}]).
Output compact JSON using short keys and abbreviated values:
{legend}
Schema: {{"o":[{{"s":"<shape>","c":"<color>","z":"<size>","m":"<mat>","p":[x,y]}},...]}}
Position: x,y in [-3,3], 2 decimal places.
Example: {{"o":[{{"s":"cu","c":"r","z":"L","m":"M","p":[1.23,-0.45]}}]}}
JSON only. No prose.{think}"""
THINK = (
    " Before your final answer, reason step-by-step inside <think> and </think> tags. "
    "Then output the JSON."
)

_LONG = {
    name: {short.lower(): word for word, short in table.items()} | {word: word for word in table}
    for name, table in SHORT.items()
}


def legend() -> str:
    """One line per attribute: its key, and each word with its abbreviation."""
    return "\n".join(
        f"{name} ({KEYS[name]}): " + ", ".join(f"{word}={short}" for word, short in table.items())
        for name, table in SHORT.items()
    )


def write_scene(scene: Objects) -> str:
    """Compact JSON with short keys and words, positions to two decimals."""
    objects = [
        {key: SHORT[name][getattr(each, name)] for name, key in KEYS.items()}
        | {"p": [round(each.x, 2), round(each.y, 2)]}
        for each in scene
    ]
    return json.dumps({"o": objects}, separators=(",", ":"))


def write_codes(codes: Sequence[int]) -> str:
    """The active codes of a program as the prompt gives them."""
    return " ".join(map(str, codes))


def scene_prompt(
    codes: Sequence[int],
    shots: Sequence[tuple[Sequence[int], Objects]],
    codebook_size: int,
    *,
    think: bool = False,
) -> str:
    """The paper's prompt, examples (codes, scene), and the codes to read."""
    lines = [
        PROMPT.format(
            size=codebook_size,
            last=codebook_size - 1,
            legend=legend(),
            think=THINK if think else "",
        )
    ]
    lines += [f"Codes: {write_codes(c)}\nJSON: {write_scene(scene)}" for c, scene in shots]
    lines.append(f"Codes: {write_codes(codes)}\nJSON:")
    return "\n\n".join(lines)


def read_scene(text: str) -> Objects | None:
    """The scene in a model's answer, or None if it cannot be parsed.

    <think> blocks, prose and code fences are ignored, and long words are accepted. The last scene
    counts, because models draft. One object with an unknown word or without a position makes the
    whole answer a failure.
    """
    for candidate in reversed(list(_json_objects(without_thoughts(text)))):
        objects = candidate.get("o", candidate.get("objects"))
        if isinstance(objects, list):
            scene = [_read_object(entry) for entry in objects]
            return None if None in scene else tuple(each for each in scene if each)
    return None


def without_thoughts(text: str) -> str:
    """The text after the last `</think>`; empty if a <think> block is not closed."""
    answer = text.rpartition("</think>")[2]
    return answer.partition("<think>")[0]


def _json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Every outermost JSON object in the text, in order."""
    decoder = json.JSONDecoder()
    position = 0
    while (start := text.find("{", position)) >= 0:
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            position = start + 1
            continue
        if isinstance(value, dict):
            yield value


def _read_object(entry: object) -> SceneObject | None:
    if not isinstance(entry, Mapping):
        return None
    words = {}
    for name, key in KEYS.items():
        given = str(entry.get(key, entry.get(name, ""))).strip().lower()
        if given not in _LONG[name]:
            return None
        words[name] = _LONG[name][given]
    place = entry.get("p", entry.get("position"))
    if not isinstance(place, list) or len(place) < 2:
        return None
    x, y = (_number(value) for value in place[:2])
    return None if x is None or y is None else SceneObject(**words, x=x, y=y)


def _number(value: object) -> float | None:
    """A finite number, which may be a string; otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
