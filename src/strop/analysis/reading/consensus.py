"""The one scene that several readings of a program come nearest to.

A reader that is unsure does badly to write the likeliest word for each object: it then writes the
same object many times. The readings that it finds plausible differ, and what serves best is the
scene with the least mean distance to them, under the same matching by which it will be judged.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STARTS, ROUNDS = 4, 3
Words = NDArray[np.int64]
Places = NDArray[np.float64]


def consensus(words: Words, places: Places) -> tuple[Words, Places]:
    """S readings of n objects, words `(S, n, 4)` and places `(S, n, 2)`, to one of each.

    It starts from the one of the first few that has the least distance to all. Then, a few times,
    the objects of every reading are matched to it, and each object takes the words that most of
    its partners have and the median of their places.
    """
    starts = zip(words[:STARTS], places[:STARTS], strict=True)
    best = int(np.argmin([sum(_match(words, places, *start)[1]) for start in starts]))
    centre_words, centre_places = words[best], places[best]
    for _ in range(ROUNDS if len(words) > 1 else 0):
        partners, _ = _match(words, places, centre_words, centre_places)
        matched = np.take_along_axis(words, partners[..., None], axis=1)
        centre_words = np.apply_along_axis(lambda votes: np.bincount(votes).argmax(), 0, matched)
        centre_places = np.median(np.take_along_axis(places, partners[..., None], axis=1), axis=0)
    return centre_words, centre_places


def _match(
    words: Words, places: Places, centre_words: Words, centre_places: Places
) -> tuple[NDArray[np.int64], list[float]]:
    """For each reading, which of its objects is each of the centre's `(S, n)`, and at what cost."""
    from scipy.optimize import linear_sum_assignment

    wrong = (centre_words[:, None] != words[:, None]).sum(-1)
    costs = wrong + np.linalg.norm(centre_places[:, None] - places[:, None], axis=-1)
    partners = np.stack([linear_sum_assignment(cost)[1] for cost in costs])
    return partners, np.take_along_axis(costs, partners[..., None], axis=2).sum((1, 2)).tolist()
