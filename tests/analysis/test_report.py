"""The report: the paper beside us where the setting is the same, else what differs."""

from __future__ import annotations

import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from strop.analysis.evaluate import Split
from strop.analysis.evaluation_report import compare, read_runs, write_report
from strop.analysis.findings import Findings, Table, write_findings
from strop.analysis.page import to_html, to_markdown
from strop.cli import app
from strop.config import to_dict
from strop.device import describe_machine
from strop.errors import DataError
from strop.images import save_image
from strop.training.preset import load_preset

_PRESET = to_dict(load_preset("strop-s-dinov3-s"))
TRAINING = {
    "data": "coco:coco?split=train",
    "images": 118_031,
    **{key: _PRESET[key] for key in ("objective", "curriculum", "training")},
}
DATASETS = {
    "voc": ("val", 1449),
    "cocostuff": ("val", 5000),
    "ade20k": ("validation", 2000),
    "cityscapes": ("val", 500),
    "nyuv2": ("test", 654),
}
ALIGNED = {
    "cosine": 0.86,
    "r2": 0.75,
    "r2_centred": 0.5,
    "cosine_mean_field": 0.6,
    "r2_mean_field": 0.4,
    "r2_centred_mean_field": 0.1,
}
BUDGET = {
    "lengths": "all K",
    "bits": 640.0,
    "model": {"cosine": 0.86, "r2": 0.75, "r2_centred": 0.5},
    "baselines": {"kmeans": {"cosine": 0.8, "r2": 0.7, "r2_centred": 0.4, "bits": 640.0}},
}


def write_part(folder, kind="voc", suite="alignment", *, variant="strop-s-dinov3-s", **result):
    """One finished part, as `strop eval` leaves it."""
    split, images = DATASETS.get(kind, ("val", 7))
    model = {
        "name": Path(folder).name,
        "fingerprint": hashlib.sha256(f"{variant} {folder}".encode()).hexdigest()[:12],
        "config": to_dict(load_preset(variant).model),
        "about": {"data": "coco:/secret/place?split=train", "training": TRAINING},
    }
    spec = "scenes:?n=7" if kind == "scenes" else f"{kind}:/secret/place?split={split}"
    data = Split(spec, None, spec)
    header = {"suite": suite, "model": model, "data": data.data, "train": data.train}
    header |= {"seed": 0, "protocol": "paper", "options": {}}
    header |= {"seconds": 1.5, "finished": "now", "machine": describe_machine("cpu")}
    values = {"values": dict(ALIGNED)} if suite == "alignment" else {}
    notes = result.pop("notes", ())
    findings = Findings(numbers={"images": images, **values, **result}, notes=notes)
    return write_findings(Path(folder) / data.folder, suite, "evaluation", header, findings)


def segmented(miou):
    found = {"values": {"miou": miou}, "intervals": {"miou": [miou - 1, miou + 1]}}
    return {"representations": {"teacher": found, "latent": found, "raw": found}}


def test_cells_of_the_same_setting_are_lined_up(tmp_path):
    write_part(tmp_path / "s")
    write_part(tmp_path / "s", suite="segmentation", **segmented(60.0))
    rows = {
        (row["suite"], row["representation"], row["measure"]): (row["ours"], row["paper"])
        for row in compare(read_runs([tmp_path / "s"]))
    }
    assert rows == {
        ("alignment", "", "cosine"): (0.86, 0.859),
        ("alignment", "", "r2"): (0.75, 0.742),
        ("segmentation", "teacher", "miou"): (60.0, 68.3),
        ("segmentation", "latent", "miou"): (60.0, 58.9),
    }


def test_the_mean_is_compared_if_all_five_datasets_are_there(tmp_path):
    for kind in DATASETS:
        assert not [row for row in compared(tmp_path) if row["dataset"] == "mean"]
        write_part(tmp_path / "s", kind)
    mean = {row["measure"]: row for row in compared(tmp_path) if row["dataset"] == "mean"}
    assert mean["cosine"]["ours"] == pytest.approx(0.86)
    assert mean["cosine"]["paper"] == 0.855


def compared(folder):
    return compare(read_runs([folder / "s"])) if (folder / "s").exists() else []


def test_multilabel_means_are_printed_and_compared(tmp_path):
    for kind, value in (("cocostuff", 56.0), ("voc", 60.0)):
        found = {"values": {"map": value}, "intervals": {}}
        write_part(tmp_path / "s", kind, "multilabel", representations={"latent": found})
    mean = [row for row in compared(tmp_path) if row["dataset"] == "mean"]
    assert [(row["representation"], row["ours"], row["paper"]) for row in mean] == [
        ("latent", 58.0, 59.1)
    ]
    write_report([tmp_path / "s"], tmp_path / "page")
    text = (tmp_path / "page" / "report.md").read_text()
    assert "| s, mean of 2 latent |  | 58.0 |" in text


def test_the_page_has_floor_baselines_paper_and_circumstances(tmp_path):
    write_part(tmp_path / "s", budgets=[BUDGET], notes=("A note.",))
    write_part(tmp_path / "s", suite="segmentation", **segmented(60.0))
    write_part(tmp_path / "s", "scenes")
    written = write_report([tmp_path / "s"], tmp_path / "page")
    text = (tmp_path / "page" / "report.md").read_text()
    assert [path.name for path in written] == ["report.md", "report.html", "report.json"]
    assert "| s alignment voc | cosine ↑ | 0.860 | 0.859 | +0.001 |" in text
    assert "with no bits at all, has cosine 0.600, R² 0.400, R² centred 0.100" in text
    assert "| all K | kmeans | 640.0 | 0.800 | 0.700 | 0.400 |" in text
    assert "60.0 [59.0, 61.0]" in text
    assert "the paper does not measure on scenes" in text
    assert "A note." in text
    assert "R² centred: 1 - squared error / squares about each channel's mean." in text
    assert "secret" not in text


def test_json_holds_everything(tmp_path):
    write_part(tmp_path / "s")
    write_report([tmp_path / "s"], tmp_path / "page")
    content = json.loads((tmp_path / "page" / "report.json").read_text())
    (part,) = content["parts"]
    assert part["values"]["cosine"] == 0.86
    assert part["machine"]["torch"].startswith(torch.__version__.split("+")[0])
    assert content["paper"][0]["paper"] == 0.859


def test_models_of_one_name_are_told_apart(tmp_path):
    for parent, variant in (("a", "strop-s-dinov3-s"), ("b", "strop-m-dinov3-s")):
        write_part(tmp_path / parent / "model", variant=variant)
    runs = [tmp_path / "a" / "model", tmp_path / "b" / "model"]
    names = {part["model"]["name"] for part in read_runs(runs)}
    assert len(names) == 2


def test_a_run_given_twice_is_read_once(tmp_path, monkeypatch):
    write_part(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    assert len(read_runs([tmp_path / "model", "model", "./model/"])) == 1


def test_several_datasets_have_a_mean_row(tmp_path):
    write_part(tmp_path / "s", "voc")
    write_part(tmp_path / "s", "nyuv2", values={**ALIGNED, "cosine": 0.8})
    write_report([tmp_path / "s"], tmp_path / "page")
    text = (tmp_path / "page" / "report.md").read_text()
    assert re.search(r"\| s, mean of 2 \|  \| 0\.830 \|", text)


def test_pictures_are_copied_and_embedded(tmp_path):
    write_part(tmp_path / "s")
    (folder,) = (tmp_path / "s").iterdir()
    save_image(folder / "alignment.png", torch.zeros(3, 4, 4))
    write_report([tmp_path / "s"], tmp_path / "page")
    (copy,) = (tmp_path / "page" / "figures").iterdir()
    assert f"(figures/{copy.name})" in (tmp_path / "page" / "report.md").read_text()
    assert "data:image/png;base64," in (tmp_path / "page" / "report.html").read_text()


def test_a_folder_without_parts_is_refused(tmp_path):
    with pytest.raises(DataError, match="no finished result"):
        read_runs([tmp_path])


# The page's two forms.

BLOCKS = [
    "# A & B",
    "50 % of x_1 < y",
    ["R² ↑", "{one}"],
    Table("", ["", "δ1 (%)"], [["a|b", "1.0"], ["<c>", "–"]]),
]


class Balanced(HTMLParser):
    """Fails on a tag that closes what is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_is_balanced_and_escaped(tmp_path):
    page = to_html(to_markdown(BLOCKS), tmp_path)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "<title>A &amp; B</title>" in page
    assert "<p>50 % of x_1 &lt; y</p>" in page
    assert "<td>a|b</td>" in re.sub(' style="[^"]*"', "", page)
    assert "&lt;c&gt;" in page


def test_markdown_tables_keep_their_columns():
    text = to_markdown(BLOCKS)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {3}


# The commands.


def test_eval_and_report_on_the_command_line(tokenizer, folders, tmp_path):
    tokenizer.save_pretrained(tmp_path / "model")
    val, train = folders
    run, page = tmp_path / "run", tmp_path / "page"
    command = ["eval", str(tmp_path / "model"), "-d", val, "--train", train, "-o", str(run)]
    result = CliRunner().invoke(app, [*command, "--suite", "alignment", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "R² centred" in result.output
    again = CliRunner().invoke(app, [*command, "--suite", "alignment", "--json"])
    (part,) = json.loads(again.stdout)
    assert part["model"]["name"] == "model"
    result = CliRunner().invoke(app, ["report", str(run), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert {path.name for path in page.iterdir()} >= {"report.md", "report.html"}
