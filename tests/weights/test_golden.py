"""Fixed images give exactly the committed programs; `golden.py` says how they were chosen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import golden
from strop import Tokenizer

PROGRAMS = golden.read()
CASES = [(model, image) for model, images in PROGRAMS.items() for image in images]


@pytest.mark.parametrize(("model", "image"), CASES)
def test_the_program_is_the_committed_one(
    model: str, image: str, bundled: Callable[[str], Tokenizer]
) -> None:
    tokenizer = bundled(model)
    picture = golden.picture(image, tokenizer)
    written, expected = golden.spell(picture, tokenizer), PROGRAMS[model][image]
    lead, distance = golden.margins(picture, tokenizer)
    assert written["codes"] == expected["codes"], (
        f"{'same' if written['pixels'] == expected['pixels'] else 'other'} pixels; a code leads by "
        f"{lead:.1e}, a log error is {distance:.1e} off the threshold: see {golden.PATH.stem}.py"
    )


def test_programs_differ_and_are_of_many_lengths() -> None:
    """A model that wrote the same for all would pass the test above."""
    for images in PROGRAMS.values():
        codes = [each["codes"].split() for each in images.values()]
        assert len(codes) == 4
        assert len({code for program in codes for code in program}) > 20
        assert len({len(program) for program in codes}) > 2
