"""Probes of the classes that an image holds, from its pooled representation: mAP.

Section 4, "Supervised downstream probes"; Tables 3, 8 and 9.
"""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.probes.probe import probe_analysis
from strop.analysis.probes.protocol import Protocol
from strop.analysis.probes.scores import MULTILABEL, multilabel_scores
from strop.statistics import Array


class MultilabelTask:
    """Labels (N, C) bool of both sets, predicted from the pooled representation."""

    statistics, scores = MULTILABEL, staticmethod(multilabel_scores)

    def __init__(self, train: Tensor, truth: Tensor, protocol: Protocol) -> None:
        self.outputs, self.locations, self.protocol = train.shape[1], 1, protocol
        self.train, self.truth = train, truth

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Binary cross-entropy, the mean over classes and images."""
        return F.binary_cross_entropy_with_logits(output[:, 0], self.train[rows].to(output))

    def measure(self, output: Tensor, rows: slice) -> Array:
        """The scores and labels of the images at `rows`, (b, 2, C)."""
        return np.stack([output[:, 0].double().cpu().numpy(), self.truth[rows].numpy()], axis=1)


ANALYSIS = probe_analysis(
    "labels",
    lambda train, truth, subject, protocol: MultilabelTask(train, truth, protocol),
    names="label_names",
)
