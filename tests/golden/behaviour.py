"""Pinned behaviour: what programs, fields, training and `--json` were when they were last agreed.

    python tests/golden/behaviour.py          # compares and names what differs
    python tests/golden/behaviour.py --write  # records the present behaviour

Record again only after a deliberate change of behaviour, and list that change in CHANGELOG.md.
Digests hold bit for bit on one kind of CPU with one version of torch. On any other, codes and
statistics are compared instead, with a tolerance for rounding.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_sample_image

import strop
from strop.data.record import Record
from strop.data.spec import open_dataset
from strop.training.loop import train
from strop.training.preset import load_preset

PATH = Path(__file__).with_name("behaviour.json")
MODELS = ("photos", "scenes", "tiny")
SMALL = "strop-nano"


def platform() -> dict[str, str]:
    """What must be alike for results to be alike bit for bit."""
    # Kernels differ between processors of one capability: their caches and vendors count.
    keys = ("vendor_id", "cpu family", "model\t", "stepping")
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    cpu = [next((x.split(":")[1].strip() for x in lines if x.startswith(key)), "") for key in keys]
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "cpu": " ".join([capability, *cpu]).strip()}


def images() -> list[torch.Tensor]:
    """64 uint8 images `(3, H, W)` of several shapes: scenes, photographs, noise, flat colours."""
    scenes = open_dataset("scenes:?n=32&seed=5&size=128")
    found = [torch.as_tensor(scenes[index].image) for index in range(len(scenes))]
    for name in ("china.jpg", "flower.jpg"):
        photo = torch.from_numpy(np.array(load_sample_image(name))).permute(2, 0, 1)
        found += [
            photo[:, top : top + 213, left : left + 213]
            for top in (0, 213)
            for left in range(0, 420, 70)
        ]
    generator = torch.Generator().manual_seed(0)
    for side in (48, 256, 300, 512):
        found.append(torch.randint(0, 256, (3, side, 200), generator=generator, dtype=torch.uint8))
    found += [torch.full((3, 64, 64), shade, dtype=torch.uint8) for shade in (0, 60, 200, 255)]
    return found


def digest(tensor: torch.Tensor) -> str:
    """Twelve hex digits of a tensor's bytes."""
    return hashlib.sha256(tensor.detach().contiguous().cpu().numpy().tobytes()).hexdigest()[:12]


def encoded(name: str) -> dict[str, Any]:
    """Programs, lengths and fields of the images, by a bundled model."""
    pictures = images()
    if name == "tiny":  # a teacher: it has fields only
        from strop.images import fit_square
        from strop.model.teacher import load_teacher

        teacher = load_teacher("tiny")
        with torch.no_grad():
            fields = [teacher(fit_square(picture, 256, "squash")[None])[0] for picture in pictures]
        return {"fields": [_summary(field) for field in fields]}
    tokenizer = strop.load(name, device="cpu")
    program = tokenizer.encode(pictures)
    fields = tokenizer.interpret(program)
    return {
        "codes": [" ".join(map(str, row.tolist())) for row in program.codes],
        "lengths": program.lengths.tolist(),
        "fields": [_summary(field) for field in fields],
        "teacher": [_summary(field) for field in tokenizer.field(pictures[::8])],
    }


def _summary(field: torch.Tensor) -> dict[str, Any]:
    return {"digest": digest(field), "mean": field.mean().item(), "std": field.std().item()}


class RenderedOnce:
    """The scenes of a spec in memory, because rendering takes most of the time of a short run."""

    classes, label_names = (), ()

    def __init__(self, spec: str) -> None:
        scenes = open_dataset(spec)
        self.name, self.records = spec, [scenes[index] for index in range(len(scenes))]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]


def trained() -> dict[str, Any]:
    """A run of 40 steps through all phases of the paper's mode, and the weights it ends with."""
    changes = {"training.steps": 40, "training.batch": 8, "training.log_every": 1}
    changes |= {"training.held_out": 8, "training.validate_every": 20, "training.compile": "off"}
    preset = load_preset(SMALL, changes)
    with tempfile.TemporaryDirectory() as folder:
        scenes = RenderedOnce("scenes:?n=40&seed=3&size=128")
        result = train(preset, scenes, out=folder, device="cpu")
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    for step in steps:
        step.pop("images_per_second", None)
        step.pop("time", None)
    weights = {name: digest(value) for name, value in result.tokenizer.state_dict().items()}
    return {"steps": steps, "weights": weights}


def keys(value: Any) -> Any:
    """The shape of a JSON value: names of keys, and of a list what its first item has."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return [keys(value[0])] if value and isinstance(value[0], dict | list) else []
    return None


def commands(folder: Path) -> dict[str, list[str]]:
    """Every command that has `--json`, on a small model; earlier ones make what later ones read."""
    scenes, run = "scenes:?n=12&seed=1&size=128", folder / "run"
    model, images = str(run / "model"), str(folder / "images")
    small = ["--set", "training.steps=12", "--set", "training.batch=4"]
    small += ["--set", "training.held_out=4", "--set", "training.compile=off", "--device", "cpu"]
    study = [model, "--data", scenes, "--out", str(folder / "studies"), "--device", "cpu"]
    rounds = {
        "erasure": [],
        "synergy": [],
        "codes": ["--draws", "3"],
        "readouts": [],
        "complexity": [],
    }
    return {
        "data scenes": [
            "data",
            "scenes",
            "--out",
            images,
            "--n",
            "12",
            "--size",
            "128",
            "--device",
            "cpu",
        ],
        "data check": ["data", "check", f"clevr:{images}?split=train", "--workers", "0"],
        "data pack": [
            "data",
            "pack",
            f"clevr:{images}?split=train",
            "--out",
            str(folder / "packed"),
            "--size",
            "64",
            "--workers",
            "0",
        ],
        "train": ["train", SMALL, "--data", scenes, "--out", str(run), "--workers", "0", *small],
        "train --dry-run": ["train", SMALL, "--data", scenes, "--dry-run", *small],
        "train-decoder": [
            "train-decoder",
            model,
            "--data",
            scenes,
            "--steps",
            "4",
            "--batch",
            "4",
            "--device",
            "cpu",
            "--workers",
            "0",
        ],
        "info": ["info", model],
        "info (all)": ["info"],
        "encode": [
            "encode",
            f"{images}/images",
            "-m",
            "scenes",
            "-o",
            str(folder / "p.parquet"),
            "--device",
            "cpu",
        ],
        "interpret": [
            "interpret",
            str(folder / "p.parquet"),
            "-m",
            "scenes",
            "-o",
            str(folder / "f.safetensors"),
            "--device",
            "cpu",
        ],
        "decode": [
            "decode",
            str(folder / "p.parquet"),
            "-m",
            "scenes",
            "-o",
            str(folder / "decoded"),
            "--device",
            "cpu",
        ],
        "eval": [
            "eval",
            model,
            "--data",
            scenes,
            "--train",
            "scenes:?n=24&seed=2&size=128",
            "--out",
            str(folder / "eval"),
            "--device",
            "cpu",
        ],
        "report": ["report", str(folder / "eval"), "--out", str(folder / "report")],
        **{
            f"study {name}": ["study", study[0], name, *study[1:], *options]
            for name, options in rounds.items()
        },
    }


def asked() -> dict[str, Any]:
    """The keys of what every command prints with `--json`."""
    from strop import cli

    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, arguments in commands(Path(temporary)).items():
            printed = io.StringIO()
            argv, sys.argv = sys.argv, ["strop", *arguments, "--json"]
            try:
                with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
                    cli.main()
            finally:
                sys.argv = argv
            try:
                found[name] = keys(json.loads(printed.getvalue()))
            except json.JSONDecodeError:
                found[name] = f"no JSON: {printed.getvalue()[-200:]}"
    return found


PINNED = {
    **{name: lambda name=name: encoded(name) for name in MODELS},
    "training": trained,
    "json": asked,
}


def differences(found: Any, pinned: Any, exact: bool, where: str = "") -> list[str]:
    """Where two recordings differ, by path; digests count only where they can be equal."""
    if where.endswith("digest") or ".weights." in where:
        return [where] if exact and found != pinned else []
    if isinstance(pinned, dict) and isinstance(found, dict):
        lost = [f"{where}.{key} (only in one)" for key in found.keys() ^ pinned.keys()]
        shared = sorted(found.keys() & pinned.keys())
        return lost + [
            d for k in shared for d in differences(found[k], pinned[k], exact, f"{where}.{k}")
        ]
    if isinstance(pinned, list) and isinstance(found, list) and len(pinned) == len(found):
        pairs = enumerate(zip(found, pinned, strict=True))
        return [d for i, (f, p) in pairs for d in differences(f, p, exact, f"{where}[{i}]")]
    if not exact and isinstance(pinned, float) and isinstance(found, float):
        return [] if abs(found - pinned) <= 1e-3 * max(1.0, abs(pinned)) else [where]
    return [] if found == pinned else [f"{where}: {found!r}, not {pinned!r}"]


def main() -> None:
    """Compare, or record with `--write`; names of parts may be given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PINNED))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {part: PINNED[part]() for part in arguments.parts}
    recorded = json.loads(PATH.read_text()) if PATH.is_file() else {}
    if arguments.write:
        recorded |= found
        if set(found) != {"json"}:  # keys have no digests
            recorded["platform"] = platform()
        PATH.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
        return
    exact = recorded["platform"] == platform()
    wrong = [d for part in found for d in differences(found[part], recorded[part], exact, part)]
    sys.exit("\n".join(wrong[:60]) if wrong else 0)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
