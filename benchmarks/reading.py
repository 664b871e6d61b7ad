"""The studies that read programs, on the bundled model: tables for the docs, and their figures.

Scenes are rendered and encoded on the model's device. The pairs to learn from are kept in the
folder `--out`, so that several runs, one for each study, may share them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console

import strop
from common import RESULTS
from strop.config import from_dict, to_dict
from strop.data.record import Batch
from strop.data.scenes import ScenesDataset
from strop.data.spec import open_dataset
from strop.model.tokenizer import Tokenizer
from strop.program import Program
from strop.structure.study import Encoded, Job, find_study, write_findings
from structure import keep

ALL = ("reader", "grammar", "vqa")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--model", default="scenes")
    parser.add_argument("--test", default="scenes:?n=1000&seed=9")
    parser.add_argument("--pairs", default="scenes:?n=20000&seed=5")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("studies/reading"))
    arguments = parser.parse_args()
    tokenizer = strop.load(arguments.model)
    encoded = encode_scenes(tokenizer, arguments.test)
    for name in arguments.studies:
        Console().print(f"{name} on {arguments.test} with {arguments.model}")
        study = find_study(name)
        chosen = {"pairs": arguments.pairs, "epochs": arguments.epochs}
        options = from_dict(study.options, chosen)
        findings = study.run(tokenizer, encoded, options, Job(arguments.out, tell))
        setting = {
            "study": name,
            "model": tokenizer.fingerprint,
            "data": arguments.test,
            "images": len(encoded),
            "options": to_dict(options),
        }
        write_findings(arguments.out, setting, findings)
        keep(arguments.out, name, "scenes", Path(arguments.model).name, private="")
        Console().print(f"wrote {RESULTS / 'structure' / name}-scenes.json")


def encode_scenes(tokenizer: Tokenizer, spec: str, batch: int = 250) -> Encoded:
    """Rendered scenes as a study gets them, made on the model's device and without masks."""
    dataset = open_dataset(spec)
    assert isinstance(dataset, ScenesDataset)
    images, scenes, programs = [], [], []
    for start in range(0, len(dataset), batch):
        rows = range(start, min(start + batch, len(dataset)))
        records = dataset.records(rows, tokenizer.device)
        part = torch.stack([record.image for record in records])
        programs.append(tokenizer.encode(part, batch=batch).to("cpu"))
        images.append(part.cpu())
        scenes += [record.scene for record in records]
    program = Program.cat(programs)
    names = tuple(scene["image_filename"] for scene in scenes)
    records = Batch(
        images=torch.cat(images),
        names=names,
        indices=torch.arange(len(names)),
        scenes=tuple(scenes),
    )
    return Encoded(data=spec, records=records, program=program.named(names))


def tell(what: str, done: int, total: int) -> None:
    """A line now and then."""
    if done == total:
        Console().print(f"  {what}: {total}")


if __name__ == "__main__":
    main()
