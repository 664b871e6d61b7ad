"""The analyses by name. Each is a module, imported when it is needed; this module imports none.

To add an analysis, write a module as `strop.analysis.frame` describes and add one line here.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """Where an analysis is, and what it measures in one line."""

    module: str
    summary: str


EVALUATIONS = {
    "alignment": Entry("strop.analysis.alignment", "fields, codebook, lengths, bits, baselines"),
    "pixels": Entry("strop.analysis.pixels", "the decoder's previews against the images"),
    "rate": Entry(
        "strop.analysis.length_choice", "quality at every length, and the choice of lengths"
    ),
    "segmentation": Entry("strop.analysis.probes.segmentation", "linear probes of classes"),
    "multilabel": Entry("strop.analysis.probes.multilabel", "linear probes of labels"),
    "depth": Entry("strop.analysis.probes.depth", "linear probes of depth"),
}
"""The paper's tables: `strop eval` runs these by default."""

STUDIES = {
    "erasure": Entry("strop.analysis.erasure", "what each token contributes to the field"),
    "synergy": Entry("strop.analysis.synergy", "what two tokens contribute only together"),
    "codes": Entry("strop.analysis.code_usage", "usage of the codebook, and a dictionary of codes"),
    "readouts": Entry(
        "strop.analysis.readouts", "unsupervised regions and classes from fields and codes"
    ),
    "lengths": Entry("strop.analysis.length_rules", "rules for choosing lengths, side by side"),
    "complexity": Entry("strop.analysis.complexity", "program length against image complexity"),
}
"""What the codes mean: `strop study` runs one of these."""

ANALYSES = EVALUATIONS | STUDIES

MOVED = ("controls", "grammar")
"""Studies that are scripts in `research/structure` now."""
