"""`strop study` with the studies of this folder.

    python research/reading/studies.py MODEL reader --data "scenes:?n=1000&seed=9" --out studies

Arguments and options are those of `strop study`.
"""

from __future__ import annotations

import sys

from strop.analysis.registry import ANALYSES, STUDIES, Entry

READING = {
    "contingency": Entry("contingency", "whether attributes live in single codes or combinations"),
    "llm": Entry("llm", "scenes read from codes by a language model"),
    "reader": Entry("reader", "scenes read from codes by a trained network"),
    "vqa": Entry("vqa", "questions about scenes, answered from codes"),
}


def register() -> None:
    """Let `strop.analysis` find the studies. Their modules must be importable."""
    STUDIES.update(READING)
    ANALYSES.update(READING)


if __name__ == "__main__":
    register()
    from strop.cli import main  # its help lists the registered studies

    sys.argv.insert(1, "study")
    main()
