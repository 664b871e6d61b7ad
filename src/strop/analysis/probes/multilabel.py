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
from strop.analysis.probes.protocol import Multilabel, find_protocol
from strop.analysis.probes.scores import MULTILABEL, multilabel_scores
from strop.analysis.subject import Subject
from strop.errors import ConfigError
from strop.statistics import Array


def check(subject: Subject, options: Options) -> None:
    """Refuse a protocol without this probe, and splits that do not match."""
    _settings(options.protocol)
    check_splits(subject, options.protocol, "label_names")


def run(subject: Subject, options: Options) -> Findings:
    """Probe every representation."""
    settings = _settings(options.protocol)
    labels = required(subject.fitted_on().records.labels), required(subject.records.labels)
    numbers, _ = probe_representations(subject, MultilabelTask(*labels, settings), options.seed)
    names = list(subject.label_names)
    shared = {"class_names": names, "hyperparameters": asdict(settings)}
    return Findings(numbers={**numbers, **shared})


ANALYSIS = Analysis(run=run, options=Options, needs=("labels",), fits=True, check=check)


def _settings(name: str) -> Multilabel:
    found = find_protocol(name).multilabel
    if found is None:
        raise ConfigError(f"The protocol {name} has no multi-label probe.", "Use --protocol paper.")
    return found


class MultilabelTask:
    """Labels (N, C) bool of both sets, predicted from the pooled representation."""

    def __init__(self, train: Tensor, truth: Tensor, protocol: Multilabel) -> None:
        self.outputs, self.locations = train.shape[1], 1
        self.schedule, self.head = protocol.schedule, protocol.head
        self.images, self.chunk = len(train), 256
        self.train, self.truth = train, truth
        self.statistics, self.scores = MULTILABEL, multilabel_scores

    def loss(self, output: Tensor, rows: Tensor) -> Tensor:
        """Binary cross-entropy, the mean over classes and images."""
        return F.binary_cross_entropy_with_logits(output[:, 0], self.train[rows].to(output))

    def measure(self, output: Tensor, rows: slice) -> Array:
        """The scores and labels of the images at `rows`, (b, 2, C)."""
        return np.stack([output[:, 0].double().cpu().numpy(), self.truth[rows].numpy()], axis=1)
