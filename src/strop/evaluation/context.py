"""What a suite is given: the model, and features of the data, computed when first asked for.

A suite is a function `run(context) -> dict` whose result is JSON: `values` maps names of
`strop.evaluation.measures` to numbers, `intervals` the same names to `[low, high]`; what else it
holds is the suite's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from strop.data.record import Dataset
from strop.errors import DataError
from strop.evaluation.features import Features, compute_features
from strop.evaluation.probes.checks import check_apart
from strop.evaluation.probes.heads import Representation
from strop.evaluation.probes.representations import represent
from strop.model.tokenizer import Tokenizer

Report = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


@dataclass(eq=False, kw_only=True)
class Context:
    """One dataset for one model. `val` is measured; `train` is what probes and baselines fit.

    folder    where a suite puts its pictures
    protocol  which probe protocol: `paper` or `dinov3`
    probe_lengths  forced lengths at which interpreted fields and programs are probed as well
    lpips     the file of LPIPS weights, if there is one
    """

    tokenizer: Tokenizer
    data: Dataset
    train_data: Dataset | None = None
    folder: Path
    protocol: str = "paper"
    probe_lengths: tuple[int, ...] = ()
    lpips: Path | None = None
    seed: int = 0
    batch: int = 32
    workers: int = 0
    report: Report | None = None

    @cached_property
    def val(self) -> Features:
        """Features of the data that is measured."""
        return self._features(self.data, "fields")

    @cached_property
    def train(self) -> Features:
        """Features of the data to fit on; it shares no image with `val`."""
        if self.train_data is None:
            raise DataError(
                f"There is nothing to fit on for {self.data.name}.", "Give it with --train SPEC."
            )
        train = self._features(self.train_data, "fields to fit on")
        check_apart(train.images, train.names, self.val.images, self.val.names)
        return train

    @cached_property
    def representations(self) -> tuple[dict[str, Representation], dict[str, Representation]]:
        """What is probed, by name: of `train` and of `val`."""
        train, val = self.train, self.val
        return (
            represent(self.tokenizer, train, self.seed),
            represent(self.tokenizer, val, self.seed),
        )

    def progress(self, what: str) -> Callable[[int, int], None]:
        """`report` for one piece of work."""
        return lambda done, total: self.report(what, done, total) if self.report else None

    def _features(self, dataset: Dataset, what: str) -> Features:
        return compute_features(
            self.tokenizer,
            dataset,
            batch=self.batch,
            workers=self.workers,
            progress=self.progress(what),
        )
