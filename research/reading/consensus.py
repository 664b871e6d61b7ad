"""The consensus of several sampled readings of a program.

If a reader is uncertain, the most probable words of every object are the same words many times.
Sampled readings differ instead. Their consensus is the scene with the least mean distance to them,
under the matching of objects that also scores readings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STARTS, ROUNDS = 4, 3
Words = NDArray[np.int64]
Places = NDArray[np.float64]


def consensus(words: Words, places: Places) -> tuple[Words, Places]:
    """S readings of n objects, words `(S, n, 4)` and places `(S, n, 2)`, to one of each.

    The start is the one of the first few readings with the least distance to all. Each round
    matches the objects of every reading to it; each object then takes the most frequent words and
    the median place of its matches.
    """
    starts = zip(words[:STARTS], places[:STARTS], strict=True)
    best = int(np.argmin([sum(_match(words, places, *start)[1]) for start in starts]))
    centre_words, centre_places = words[best], places[best]
    for _ in range(ROUNDS if len(words) > 1 else 0):
        matches, _ = _match(words, places, centre_words, centre_places)
        matched = np.take_along_axis(words, matches[..., None], axis=1)
        centre_words = np.apply_along_axis(lambda votes: np.bincount(votes).argmax(), 0, matched)
        centre_places = np.median(np.take_along_axis(places, matches[..., None], axis=1), axis=0)
    return centre_words, centre_places


def _match(
    words: Words, places: Places, centre_words: Words, centre_places: Places
) -> tuple[NDArray[np.int64], list[float]]:
    """For each reading, its match of each of the centre's objects `(S, n)`, and the cost."""
    from scipy.optimize import linear_sum_assignment

    wrong = (centre_words[:, None] != words[:, None]).sum(-1)
    costs = wrong + np.linalg.norm(centre_places[:, None] - places[:, None], axis=-1)
    matches = np.stack([linear_sum_assignment(cost)[1] for cost in costs])
    return matches, np.take_along_axis(costs, matches[..., None], axis=2).sum((1, 2)).tolist()
