"""The model card: a README rendered from the config and from `about`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strop.model.tokenizer import Tokenizer

_ELSEWHERE = ("name", "load", "metrics", "training", "warning")
"""Keys of `about` that the table of facts does not show."""


def render(tokenizer: Tokenizer) -> str:
    """The card of a model as Markdown, with the front matter that hubs read."""
    config, about = tokenizer.config, tokenizer.about
    title = about.get("name", "A STROP model")
    facts = {
        "teacher": f"`{config.teacher.name}` (features of {config.teacher.width} dimensions)",
        "image size": f"{config.image_size} px, {config.fit}",
        "features": f"{config.grid} x {config.grid} patches",
        "tokens": f"1 to {config.max_length}, each one of {config.quantizer.codes} codes "
        f"(at most {config.bits:.0f} bits)",
        "parameters": f"{tokenizer.trainable_parameters / 1e6:.2f} M, without teacher and decoder",
        **{key: value for key, value in about.items() if key not in _ELSEWHERE},
    }
    sections = [
        "---\nlibrary_name: strop\nlicense: apache-2.0\npipeline_tag: image-feature-extraction\n"
        "tags: [strop, image-tokenizer, vector-quantization]\n---",
        f"# {title}",
        f"This model turns an image into at most {config.max_length} discrete tokens and "
        "reconstructs the patch features of its teacher from them. It chooses the number of "
        "tokens for each image.",
        *([f"> **Warning.** {about['warning']}"] if "warning" in about else []),
        _table(facts, "", ""),
    ]
    if metrics := about.get("metrics"):
        sections += ["## Metrics", _table(metrics, "metric", "value")]
    elif "data" not in about:
        sections += ["This model has random weights. It has not been trained."]
    sections += [
        "## Use",
        f'```python\nimport strop\n\ntok = strop.load("{about.get("load", "path/or/hub-id")}")\n'
        'program = tok.encode(["photo.jpg"])\nfeatures = tok.interpret(program)\n```',
    ]
    return "\n\n".join(sections) + "\n"


def _table(values: dict[str, Any], left: str, right: str) -> str:
    rows = [f"| {key} | {_cell(value)} |" for key, value in values.items()]
    return "\n".join([f"| {left} | {right} |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
