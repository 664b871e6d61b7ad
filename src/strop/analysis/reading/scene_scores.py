"""How well a scene was read from its program, and what a guess without the program scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strop.statistics import Interval, bootstrap
from strop.structure.things import ATTRIBUTES, Thing, Things


class Metric(NamedTuple):
    """What a figure of this table means, and which way is better."""

    title: str
    lower_is_better: bool


METRICS: dict[str, Metric] = {
    "count_error": Metric("count error", True),
    "attribute_accuracy": Metric("attribute accuracy", False),
    "placed_accuracy": Metric("attribute accuracy, matched by place", False),
    "position_mse": Metric("position MSE", True),
    "position_mae": Metric("position MAE", True),
}


@dataclass(frozen=True)
class Scores:
    """Scores of some readings: a row per scene, and how many could not be parsed.

    rows       metric to one number per parsed scene; NaN where nothing could be matched
    attributes accuracy of each attribute by itself, per parsed scene
    failures   scenes whose reading was no scene at all; they are in no average, as in the paper
    """

    rows: Mapping[str, NDArray[np.float64]]
    attributes: Mapping[str, NDArray[np.float64]]
    failures: int

    def intervals(self, seed: int = 0) -> dict[str, Interval]:
        """Mean of each metric over scenes, with its 95 % interval by bootstrap."""
        return {name: mean_interval(row, seed) for name, row in self.rows.items()}


def mean_interval(values: NDArray[np.float64], seed: int = 0) -> Interval:
    """The mean of the (N,) finite values with its 95 % interval by bootstrap over them."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return Interval(*[float("nan")] * 3)
    return bootstrap(np.mean, finite, seed=seed)


def score(read: Sequence[Things | None], truth: Sequence[Things]) -> Scores:
    """Compare what was read with what is there, scene by scene; None is a parse failure."""
    pairs = [(r, t) for r, t in zip(read, truth, strict=True) if r is not None]
    rows = [_score_one(r, t) for r, t in pairs]
    matched = [match(r, t) for r, t in pairs]
    return Scores(
        rows={name: np.array([row[name] for row in rows]) for name in METRICS},
        attributes={
            name: np.array(
                [
                    _mean([getattr(r[i], name) == getattr(t[j], name) for i, j in found])
                    for (r, t), found in zip(pairs, matched, strict=True)
                ]
            )
            for name in ATTRIBUTES
        },
        failures=len(read) - len(pairs),
    )


def _score_one(read: Things, truth: Things) -> dict[str, float]:
    found = [(read[i], truth[j]) for i, j in match(read, truth)]
    placed = [(read[i], truth[j]) for i, j in match(read, truth, _distance)]
    away = [(abs(a.x - b.x), abs(a.y - b.y)) for a, b in found]
    return {
        "count_error": abs(len(read) - len(truth)),
        "attribute_accuracy": _mean([1 - _wrong(a, b) / len(ATTRIBUTES) for a, b in found]),
        "placed_accuracy": _mean([1 - _wrong(a, b) / len(ATTRIBUTES) for a, b in placed]),
        "position_mse": _mean([dx**2 + dy**2 for dx, dy in away]),
        "position_mae": _mean([dx + dy for dx, dy in away]),
    }


def _distance(a: Thing, b: Thing) -> float:
    return float(np.hypot(a.x - b.x, a.y - b.y))


def _wrong(a: Thing, b: Thing) -> int:
    """How many of the four words differ."""
    return sum(one != other for one, other in zip(a.words, b.words, strict=True))


def _by_all(a: Thing, b: Thing) -> float:
    return _wrong(a, b) + _distance(a, b)


def match(
    read: Things, truth: Things, cost: Callable[[Thing, Thing], float] = _by_all
) -> list[tuple[int, int]]:
    """The cheapest pairing of two sets of objects (Hungarian): indices into `read` and `truth`.

    A pair costs a point for each wrong word and one for each metre. The paper does not say how it
    matches; under this cost, a guess from the pool scores what its table gives a guess, and under
    place alone or words alone it does not.
    """
    from scipy.optimize import linear_sum_assignment

    if not read or not truth:
        return []
    costs = np.array([[cost(a, b) for b in truth] for a in read])
    rows, columns = linear_sum_assignment(costs)
    return list(zip(rows.tolist(), columns.tolist(), strict=True))


def naive_scene(pool: Sequence[Things], seed: int = 0) -> Things:
    """An average scene, which a reader must beat: what the pool says without any program.

    It has the pool's mean number of objects, and each attribute and coordinate in the pool's
    proportions: evenly spaced quantiles rather than draws, which may be lucky. Which shape meets
    which color at which place is by chance.
    """
    random = np.random.default_rng(seed)
    objects = [thing for scene in pool for thing in scene]
    count = round(len(objects) / len(pool))
    quantiles = ((np.arange(count) + 0.5) / count * len(objects)).astype(int)
    columns = [sorted(column) for column in zip(*objects, strict=True)]
    drawn = [[column[q] for q in random.permutation(quantiles)] for column in columns]
    return tuple(map(Thing._make, zip(*drawn, strict=True)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
