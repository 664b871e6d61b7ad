"""`benchmarks/results` is small, and a page or a script reads each file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
TRACE = """
import json, sys
opened = set()
sys.addaudithook(lambda event, values: event == "open" and opened.add(str(values[0])))
sys.path.insert(0, "docs")
import make
for page in make.PAGES:
    make.filled(page.read_text(encoding="utf-8"), page)
print(json.dumps(sorted(opened)))
"""


def read_by_pages() -> set[Path]:
    """The files that `docs/make.py` opens to fill the pages, and the pictures that pages show."""
    run = subprocess.run(
        [sys.executable, "-c", TRACE], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    found = {Path(path).resolve() for path in json.loads(run.stdout)}
    for page in (*REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("research/*/*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            found.add((page.parent / link).resolve())
    return found


def named_in_scripts(path: Path) -> bool:
    """Whether a test, a script or the notes read the file by its name."""
    readers = [
        *REPOSITORY.glob("tests/**/*.py"),
        *REPOSITORY.glob("research/**/*.py"),
        REPOSITORY / "benchmarks" / "NOTES.md",
    ]
    return any(path.name in reader.read_text(encoding="utf-8") for reader in readers)


def test_each_file_is_read() -> None:
    known = read_by_pages()
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(known & set(files)) > 20
    assert not [path for path in files if path not in known and not named_in_scripts(path)]


def test_results_stay_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.rglob("*")) < 1.5e6


def test_each_picture_of_the_report_is_shown() -> None:
    report = REPOSITORY / "research" / "report"
    text = "".join(page.read_text(encoding="utf-8") for page in report.glob("*.md"))
    pictures = list(report.rglob("*.png"))
    assert pictures
    assert not [path for path in pictures if path.name not in text]
