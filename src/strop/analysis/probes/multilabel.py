"""Probes of the classes that an image holds, from its pooled representation: mAP.

Section 4, "Supervised downstream probes"; Tables 3, 8 and 9.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from strop.analysis.findings import Findings
from strop.analysis.frame import Analysis
from strop.analysis.probes.probe import Options, check_splits, probe_representations, required
from strop.analysis.probes.protocol import Protocol, find_protocol
from strop.analysis.probes.scores import MULTILABEL, multilabel_scores
from strop.analysis.subject import Subject
from strop.statistics import Array


def run(subject: Subject, options: Options) -> Findings:
    """Probe every representation."""
    protocol = find_protocol(options.protocol)
    labels = required(subject.fitted_on().records.labels), required(subject.records.labels)
    numbers, _ = probe_representations(subject, MultilabelTask(*labels, protocol), options.seed)
    shared = {"class_names": list(subject.label_names), "hyperparameters": asdict(protocol)}
    return Findings(numbers={**numbers, **shared})


ANALYSIS = Analysis(
    run=run,
    options=Options,
    needs=("labels",),
    fits=True,
    check=lambda subject, options: check_splits(subject, options.protocol, "label_names"),
)


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
