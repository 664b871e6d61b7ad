"""The studies of structure on the bundled models: tables for the docs, and their figures.

Results go to `results/structure/STUDY-SET.json`, figures to `docs/images/structure`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image
from rich.console import Console

import strop
from common import RESULTS, machine
from strop.analysis.findings import FORMAT
from strop.analysis.frame import run_study
from strop.files import atomic_path, read_json, write_json

PICTURES = RESULTS.parents[1] / "docs" / "images" / "structure"
WIDEST = 1300  # pixels
# Figures that hold images of the data; only rendered scenes are ours to publish.
PICTURED = ("teaser", "pairs", "dictionary", "regions", "scenes", "samples")

ALL = ("erasure", "synergy", "codes", "readouts", "complexity", "contingency", "controls")
SETS = {
    "scenes": ("scenes", "scenes:?n={n}&seed=7", ALL),
    "clevr": ("scenes", "clevr:{shared}/data/clevr?split=val", ALL),
    "voc": ("photos", "voc:{shared}/data/voc2012?split=val", ALL),
}
MANY = ("complexity", "contingency")  # ask for correlations and probes: they need more scenes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", default="../shared", help="where real samples are")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--studies", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument(
        "--scenes", type=int, default=400, help="rendered scenes; some take five times as many"
    )
    parser.add_argument("--model", help="instead of the bundled one of each set")
    parser.add_argument("--out", type=Path, default=Path("studies"), help="everything else")
    arguments = parser.parse_args()
    for kind in arguments.sets:
        model, pattern, studies = SETS[kind]
        name = arguments.model or model
        tokenizer = strop.load(name)
        tokenizer.precision = "fp32"
        for study in (each for each in studies if each in arguments.studies):
            n = arguments.scenes * (5 if study in MANY else 1)
            spec = pattern.format(n=n, shared=arguments.shared)
            Console().print(f"{study} on {spec} with {name}")
            run_study(tokenizer, study, spec, arguments.out / kind)
            keep(arguments.out / kind, study, kind, Path(name).name, f"{arguments.shared}/data/")


def keep(folder: Path, study: str, kind: str, model: str, private: str) -> None:
    """Copy a study's JSON and figures to where the docs find them."""
    found = read_json(folder / f"{study}.json", "study", FORMAT)
    found.pop("codes", None)  # an entry for every code, for the dictionary
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
        if figure not in PICTURED:  # a palette does for curves and bars
            picture = picture.quantize(128)
        with atomic_path(PICTURES / f"{study}-{kind}-{figure}.png") as temporary:
            picture.save(temporary, format="PNG", optimize=True)


if __name__ == "__main__":
    main()
