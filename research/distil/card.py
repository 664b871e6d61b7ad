"""The folder of a distilled teacher: weights that load as a DINOv3, facts, and a model card."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from strop.errors import TrainingError
from strop.files import PathLike, atomic_path, read_json, write_json, write_text
from strop.model.checkpoint import DISTILLED

_KIND, _VERSION = "distilled", 1
_FILES = ("model.safetensors", "config.json")


def save_distilled(
    backbone: nn.Module, folder: PathLike, facts: dict[str, Any], dtype: torch.dtype
) -> None:
    """Write the student as a `transformers` folder with its facts and its card."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    import transformers

    transformers.logging.disable_progress_bar()  # noise for a single file
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
            backbone.to("cpu", dtype).save_pretrained(scratch)  # type: ignore[operator]
            for name in _FILES:
                with atomic_path(folder / name) as temporary:
                    temporary.write_bytes((Path(scratch) / name).read_bytes())
    finally:
        transformers.logging.enable_progress_bar()
    _write(folder, facts)


def add_metrics(folder: PathLike, metrics: dict[str, float]) -> None:
    """Add metrics measured later, such as probes, to the card of a distilled teacher."""
    if not (Path(folder) / DISTILLED).is_file():
        raise TrainingError(
            f"{folder} holds no {DISTILLED}.", "Give a folder that distil.py wrote."
        )
    facts = read_json(Path(folder) / DISTILLED, _KIND, _VERSION)
    _write(Path(folder), {**facts, "metrics": {**facts["metrics"], **metrics}})


def _write(folder: Path, facts: dict[str, Any]) -> None:
    write_json(folder / DISTILLED, _KIND, _VERSION, facts)
    write_text(folder / "README.md", render(facts))


def render(facts: dict[str, Any]) -> str:
    """The card as Markdown, with the front matter for the Hugging Face hub."""
    about = {key: value for key, value in facts.items() if key not in _SECTIONS}
    about |= _settings(facts)
    sources = [
        f"- `{source['name']}`, with weight {source['weight']:g}" for source in facts["sources"]
    ]
    sections = [
        "---\nlibrary_name: transformers\npipeline_tag: image-feature-extraction\n"
        "tags: [strop, distillation, dinov3_vit]\n---",
        f"# {facts['name']}",
        "A small vision transformer with DINOv3's architecture, distilled from the networks below. "
        "Its patch tokens were trained to predict their patch features through linear heads, and "
        "its class token to predict their pooled features. It contains no weights of DINOv3 unless "
        "DINOv3 is listed below.",
        _table(about),
        "## Distilled from",
        "\n".join(sources),
    ]
    if facts["notes"]:
        sections += ["## Sources and licences", "\n".join(f"- {note}" for note in facts["notes"])]
    if facts.get("limits"):
        sections += ["## Limits", " ".join(facts["limits"])]
    sections += [
        "## Metrics",
        "On held-out images, unless the name says otherwise; `r2_centred` is R² about the mean of "
        "each channel.",
        _table(facts["metrics"]),
        "## Use",
        "```python\nfrom strop.model.teacher import load_teacher\n\n"
        'teacher = load_teacher("path/of/this/folder")\n```\n\n'
        "or `transformers.AutoModel.from_pretrained`, with ImageNet's mean and std.",
    ]
    return "\n\n".join(sections) + "\n"


def _settings(facts: dict[str, Any]) -> dict[str, Any]:
    """The settings in the card: initialisation, targets, learning rate and seed."""
    settings, first = facts["settings"], facts["sources"][0]["name"]
    inherited = f"the layers of `{first}`, fitted to its width"
    grouping = (
        f"averaged over patches that `{first}` finds similar, temperature {settings['grouping']:g}"
    )
    return {
        "initialised with": inherited if settings["inherit"] else "random weights",
        **({"other networks' features": grouping} if settings["grouping"] else {}),
        "learning rate": f"{settings['learning_rate']:g}",
        "seed": settings["seed"],
    }


_SECTIONS = ("name", "sources", "notes", "limits", "metrics", "settings")


def _table(values: dict[str, Any]) -> str:
    rows = [
        f"| {key} | {f'{value:.4g}' if isinstance(value, float) else value} |"
        for key, value in values.items()
    ]
    return "\n".join(["| | |", "|---|---|", *rows])
