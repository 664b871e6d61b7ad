"""Ways to damage a file: bytes, and the tokens of text."""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Sequence

INTEGERS = (-1, 0, 1, 127, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64)
TEXTS = (
    *map(str, INTEGERS),
    "9" * 5000,
    "1e400",
    "-1e400",
    "NaN",
    "nan",
    "inf",
    "1.5",
    "true",
    "null",
    '""',
    '"x"',
    '"\\u0000"',
    '"\\ud800"',
    "[]",
    "{}",
    "[" * 3000,
    '{"a":' * 3000,
    "[[1]]",
    "~nouser/x",
    "\x00",
    "../../..",
    "%s%n",
    "\u202e",
    "A" * 5000,
)
VALUES = (None, True, -1, 0, 1.5, 2**31, 2**63, 10**400, 1e308, float("nan"), "", "x", "\0", [], {})


def damaged(draw: random.Random, samples: Sequence[bytes]) -> bytes:
    """One of the samples with one or a few faults."""
    content = bytearray(draw.choice(samples))
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at = draw.randrange(len(content) + 1)
        match draw.randrange(8):
            case 0 | 1 if content:
                content[at % len(content)] = draw.randrange(256)
            case 2 if content:
                content[at % len(content)] ^= 1 << draw.randrange(8)
            case 3:
                del content[at : at + draw.choice((1, 2, 16, 1000, len(content)))]
            case 4:
                content[at:at] = draw.randbytes(draw.choice((1, 4, 64)))
            case 5:  # an absurd number
                number = draw.choice(INTEGERS) % 2 ** (8 * (size := draw.choice((2, 4, 8))))
                packed = number.to_bytes(size, draw.choice(("little", "big")))
                content[at : at + size] = packed
            case 6:
                content[at:] = draw.choice(samples)[at:]
            case 7:
                content[at:at] = content[at : at + 64] * draw.choice((1, 8, 100))
    return bytes(content)


def damaged_text(draw: random.Random, samples: Sequence[str]) -> bytes:
    """Text with some of its tokens replaced, or with damaged bytes."""
    text = draw.choice(samples)
    if draw.random() < 0.3:
        return damaged(draw, [text.encode()])
    tokens = re.findall(r"\w+|\W", text)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(tokens) + 1)
        tokens[at : at + draw.choice((0, 1, 1, 1, 3))] = [draw.choice((*TEXTS, *tokens[:50]))]
    return "".join(tokens).encode(errors="surrogatepass")


def damaged_json(draw: random.Random, text: str) -> bytes:
    """JSON with a value replaced or a key removed; it stays JSON."""
    whole = json.loads(text)
    for _ in range(draw.choice((1, 1, 2))):
        place = whole
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and draw.random() < 0.8:
                place = place[key]
                continue
            if isinstance(place, dict) and draw.random() < 0.2:
                del place[key]
            else:
                place[key] = draw.choice(VALUES)
            break
    return json.dumps(whole).encode()


def header_bytes(number: int) -> bytes:
    """A little-endian length, as safetensors files begin with."""
    return struct.pack("<Q", number)
