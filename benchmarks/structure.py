"""Run the studies on the bundled models, for the tables and figures of the report.

The studies are those of the package and those under `research`. Results go to
`results/structure/STUDY-SET.json`, figures to `research/report/images/studies`. The studies that
read programs share their training pairs through the folder `--out`.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from PIL import Image
from rich.console import Console

import strop
from common import RESULTS, machine
from strop.analysis.findings import FORMAT
from strop.analysis.frame import run_study
from strop.analysis.registry import STUDIES
from strop.files import atomic_path, read_json, write_json

RESEARCH = RESULTS.parents[1] / "research"
sys.path += [str(RESEARCH / "reading"), str(RESEARCH / "structure")]
PICTURES = RESEARCH / "report" / "images" / "studies"
WIDEST = 1300  # pixels
# Figures with images of the data. Only those of rendered scenes may be published.
PICTURED = ("teaser", "pairs", "dictionary", "regions", "scenes", "samples")

READING = {"pairs": "scenes:?n=20000&seed=5", "epochs": 30}
ALL = ("erasure", "synergy", "codes", "readouts", "complexity", "contingency", "controls")
SETS = {
    "scenes": ("scenes", "scenes:?n={n}&seed=7", ALL),
    "reading": ("scenes", "scenes:?n=1000&seed=9", ("reader", "grammar", "vqa")),
    "clevr": ("scenes", "clevr:{shared}/data/clevr?split=val", ALL),
    "voc": ("photos", "voc:{shared}/data/voc2012?split=val", ALL),
    "photos": ("photos", "shards:{shared}/data/coco-shards/*-val-*.tar", ("lengths",)),
    "rendered": ("scenes", "scenes:?n=2000&seed=2000&size=128", ("lengths",)),
}
OPTIONS = {"reading": READING, "photos": {"quality": 0.9}, "rendered": {"quality": 0.985}}
MANY = ("complexity", "contingency")  # correlations and probes need more scenes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", default="../shared", help="folder with real datasets")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--studies", nargs="+", help="default: all of a set")
    parser.add_argument(
        "--scenes",
        type=int,
        default=400,
        help="rendered scenes; some use five times as many",
    )
    parser.add_argument("--model", help="overrides the bundled model of each set")
    parser.add_argument("--out", type=Path, default=Path("studies"), help="folder for all output")
    arguments = parser.parse_args()
    for kind in arguments.sets:
        model, pattern, every = SETS[kind]
        name = arguments.model or model
        tokenizer = strop.load(name)
        tokenizer.precision = "fp32"
        for study in arguments.studies or every:
            if study not in every:
                continue
            n = arguments.scenes * (5 if study in MANY else 1)
            spec = pattern.format(n=n, shared=arguments.shared)
            Console().print(f"{study} on {spec} with {name}")
            batch = 250 if kind == "reading" else 32
            which = study if study in STUDIES else import_module(study).ANALYSIS
            run_study(tokenizer, which, spec, arguments.out / kind, OPTIONS.get(kind), batch=batch)
            publish(arguments.out / kind, study, kind, Path(name).name, f"{arguments.shared}/data/")


def publish(folder: Path, study: str, kind: str, model: str, private: str) -> None:
    """Copy a study's JSON and figures to the folders that the report reads."""
    kind = "scenes" if kind in ("reading", "rendered") else kind
    found = read_json(folder / f"{study}.json", "study", FORMAT)
    found.pop("codes", None)  # an entry for every code, which no page shows
    found |= {
        "data": found["data"].replace(private, ""),
        "model": f"{model} ({found['model']})",
        "machine": machine(),
    }
    write_json(RESULTS / "structure" / f"{study}-{kind}.json", "study", FORMAT, found)
    for figure in found["figures"]:
        if kind != "scenes" and figure in PICTURED:
            continue
        path = folder / f"{study}-{figure}.png"
        picture = Image.open(path).convert("RGB")
        if picture.width > WIDEST:
            size = (WIDEST, round(picture.height * WIDEST / picture.width))
            picture = picture.resize(size, Image.Resampling.LANCZOS)
        if figure not in PICTURED:  # a palette suffices for curves and bars
            picture = picture.quantize(128)
        with atomic_path(PICTURES / f"{study}-{kind}-{figure}.png") as temporary:
            picture.save(temporary, format="PNG", optimize=True)


if __name__ == "__main__":
    main()
