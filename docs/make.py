"""Fills the numbers of README and docs from `benchmarks/results`, and writes `status.md`.

Text between `<!-- begin: NAME -->` and `<!-- end: NAME -->` belongs to the block NAME below; no
figure in there is typed by hand. `--check` changes nothing and fails if something would change.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from strop.analysis.alignment import HEADLINE
from strop.analysis.findings import Table
from strop.analysis.frame import find_analysis
from strop.analysis.metric_info import METRICS
from strop.analysis.page import Picture, Points, Text, to_markdown
from strop.analysis.probes.protocol import PROTOCOLS
from strop.analysis.registry import STUDIES
from strop.analysis.report import read_runs, report_blocks
from strop.config import flatten, to_dict
from strop.files import write_text

DOCS = Path(__file__).parent
ROOT = DOCS.parent
RESULTS = ROOT / "benchmarks" / "results"

MARKS = {
    "real": "run on real data",
    "bundled": "a bundled model, rendered scenes",
    "architecture": "real architecture, random weights",
    "fixture": "fixture only",
}


CLEVR_DATA = {"scenes": "held-out scenes", "clevr": "scenes of Blender's CLEVR"}
CAPTIONS = {
    "lengths": "Mean length by the number of objects, on held-out scenes",
    "rate": "R² at forced lengths, and at the lengths that each row chooses",
}
FIELD_STATISTICS = {
    "spread": "variance over locations",
    "volume": "log volume of locations",
    "variation_1": "variation between neighbours of 8 by 8",
    "variation_2": "of 16 by 16",
    "variation_4": "of 32 by 32",
    "together": "the first three, by a linear map fitted to the number",
    "taught": "the pooled field, by a linear map fitted to the number",
    "learnt": "the pooled field, by a linear map fitted to the variation of 32 by 32",
}
"""See `research/clevr/what_lengths_follow.py`."""


def result(name: str) -> dict[str, Any]:
    """What a benchmark wrote; empty if it has not been run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def encode() -> str:
    """Encoding speed: absolute on a named GPU, as a ratio on a CPU."""
    parts = []
    if gpu := result("encode_cuda"):
        rows = [
            [
                str(row["batch"]),
                f"{row['teacher_images_per_s']:,.0f}",
                f"{row['encode_images_per_s']:,.0f}",
                f"{row['encode_over_teacher_time']:.2f}",
            ]
            for row in gpu["rows"]
        ]
        parts.append(
            f"Encoding on one {gpu['machine']['device']} ({gpu['setting']}, from uint8 on the "
            "device, bf16, compiled):\n\n"
            + table(["batch", "teacher alone, img/s", "encode, img/s", "time ratio"], rows)
        )
    if cpu := result("encode_cpu"):
        ratio = {row["batch"]: row["encode_over_teacher_time"] for row in cpu["rows"]}
        parts.append(
            f"On {cpu['machine']['cores']} CPU cores the whole encode costs {ratio[32]:.2f} times "
            "the teacher alone at batch 32."
        )
    return "\n\n".join(parts)


def rendering() -> str:
    """Rendering speed, on a named GPU."""
    gpu = result("render_cuda")
    if not gpu:
        return ""
    return (
        f"Rendering scenes of {gpu['size']} px on one {gpu['machine']['device']}: "
        f"{gpu['images_per_s']:,.0f} images/s, {gpu['images_per_s_with_sampling']:,.0f} with "
        "the sampling of the scenes."
    )


def rendering_cost() -> str:
    """What the time of an image is made of, on a GPU and on a CPU."""
    found = [result(name) for name in ("render_cuda", "render_cpu")]
    rows = [
        [part, *(f"{each['shares'][part]:.0%}" for each in found)] for part in found[0]["shares"]
    ]
    rows += [
        [f"beside it: {part}", *(f"{each['relative'][part]:.0%}" for each in found)]
        for part in ("sampling scenes", "masks and depth")
    ]
    header = ["", *(f"{each['machine']['device']} ({each['renderer']})" for each in found)]
    return f"{rendering()} Of the time of an image:\n\n{table(header, rows)}"


def loading() -> str:
    """Loading speed, as times a Pillow loop that does the same work, and one that only decodes."""
    found = result("loading")
    rows = [
        [name, f"{same:.2f}", f"{found['times_decode_only'][name]:.2f}"]
        for name, same in found["times_pillow_loop"].items()
    ]
    header = ["", "times a Pillow loop that decodes and resizes", "times one that only decodes"]
    return f"{found['setting']}, {found['machine']['cores']} cores:\n\n{table(header, rows)}"


def agreement() -> str:
    """How far GPU and CPU write the same programs."""
    found = result("agreement")
    if not found:
        return ""
    rows = [
        [
            f"`{precision}`" + (", the default" if precision == "fp16" else ""),
            f"{found[precision]['codes']:.1%}",
            f"{found[precision]['lengths']:.1%}",
        ]
        for precision in ("fp16", "bf16", "fp32")
    ]
    return (
        f"On one {found['machine']['device']}, a STROP-S and {found['images']} photographs it was "
        "not trained on; how much is as on a CPU, by `tok.precision`:\n\n"
        + table(["precision", "active codes", "lengths"], rows)
    )


def probe_protocols() -> str:
    """Every number of both probe protocols."""
    columns = [flatten(to_dict(protocol)) for protocol in PROTOCOLS.values()]
    keys = [key for key in dict.fromkeys(k for each in columns for k in each) if key != "name"]
    rows = [[f"`{key}`", *(cell(each.get(key)) for each in columns)] for key in keys]
    return table(["", *PROTOCOLS], [row for row in rows if {*row[1:]} != {"–"}])


def teacher_quality() -> str:
    """Figures of teachers' fields."""
    found = result("teacher_quality")

    def probed(row: dict[str, Any], suite: str, name: str) -> str:
        low, high = row[suite]["intervals"][name]
        return f"{row[name]:.1f} ({low:.1f} to {high:.1f})"

    rows = [
        [
            f"`{row['teacher']}`",
            f"{row['parameters'] / 1e6:.1f} M",
            probed(row, "segmentation", "miou"),
            probed(row, "multilabel", "map"),
            f"{row['grouping_auc']:.3f}",
            f"{row['effective_rank']:.1f} of {row['width']}",
        ]
        for row in found["rows"]
    ]
    first = found["rows"][0]
    setting = (
        f"{first['train_images']} images of {found['data']['train']} to train on, "
        f"{first['val_images']} of {found['data']['val']} to score, {found['size']} px; with 95 % "
        "intervals over images, which lean upwards: a draw of images that lacks a rare class is "
        "scored without it:"
    )
    header = ["teacher", "parameters", "mIoU, %", "mAP, %", "grouping AUC", "effective rank"]
    return f"{setting}\n\n{table(header, rows)}"


def bundled(name: str) -> str:
    """A bundled model beside what takes as many bits, its lengths, and other data."""
    found = result(f"{name}/bundled")
    if not found:
        return "Not measured yet."
    measured = found["measured"]
    values, (own, whole) = measured["values"], measured["budgets"]
    floor = result("mean_image")["sets"][name]
    lines = [
        f"{measured['images']:,} held-out images; baselines of as many bits, fitted on "
        f"{own['fitted_on']:,}. At the lengths it chooses, {own['bits']:.0f} bits a program in the "
        "mean:",
        _beside(name, own),
        f"At all codes, {whole['bits']:.0f} bits:",
        _beside(name, whole),
        f"Lengths {values['length_least']:.0f} to {values['length_most']:.0f}, mean "
        f"{values['length_mean']:.1f}, spread {values['length_spread']:.1f}; correlation with the "
        f"spatial variance of the field {values['length_detail_correlation']:.2f}. "
        f"{values['codebook_used']:.0f} % of the codes are in use. The preview has a PSNR of "
        f"{measured['preview']['psnr']:.1f} dB and an SSIM of {measured['preview']['ssim']:.2f}; "
        f"the mean image, one for all, has {floor['psnr']:.1f} dB and {floor['ssim']:.2f}.",
    ]
    for where, part in found["also"].items():
        budget = part["budgets"][0]
        lines += [
            f"On {part['images']:,} images of `{where}`, which it never saw, at the lengths it "
            f"chooses, {budget['bits']:.0f} bits in the mean; baselines as above:",
            _beside(name, budget),
        ]
    parts = {"held-out scenes": measured, **{f"`{k}`": part for k, part in found["also"].items()}}
    if follows := [
        [
            where,
            *(_interval(part["complexity"][kind]) for kind in ("pearson", "spearman")),
            f"{part['complexity']['percentiles']['ratio']:.2f}",
        ]
        for where, part in parts.items()
        if "complexity" in part
    ]:
        header = ["", "Pearson r", "Spearman r", "95 % at ten over 5 % at three"]
        lines += [
            "Length against the number of objects, with 95 % intervals:",
            table(header, follows),
        ]
    return "\n\n".join(lines)


def _beside(name: str, budget: dict[str, Any]) -> str:
    """Model and baselines at one budget of bits."""
    parts = {f"`{name}`": budget["model"], **budget["baselines"]}
    rows = [[each, *(f"{part[score]:.3f}" for score in HEADLINE)] for each, part in parts.items()]
    margin = [f"{budget['margin'][score]:+.3f}" for score in HEADLINE]
    return table(["", *HEADLINE], [*rows, ["margin over the best", *margin]])


def _interval(found: dict[str, float]) -> str:
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def measures() -> str:
    """Every figure of evaluation, by name."""
    rows = [
        [f"`{name}`", measure.unit, measure.better, measure.definition]
        for name, measure in METRICS.items()
    ]
    return table(["figure", "unit", "better", "definition"], rows)


def evaluation_speed() -> str:
    """How long all suites take together."""
    found = [run for run in map(result, ("eval_cuda", "eval_cpu")) if run]
    if not found:
        return "Measured by `benchmarks/eval.py`; not yet run."
    suites = list(found[0]["seconds"])
    header = [found[0]["setting"], *(_where(run) for run in found)]
    rows = [[name, *(f"{run['seconds'].get(name, 0):.0f} s" for run in found)] for name in suites]
    return table(header, rows)


def _where(run: dict[str, Any]) -> str:
    cores = f", {run['machine']['cores']} cores" if run["machine"]["device"] == "CPU" else ""
    return f"`{run['model']}` on {run['machine']['device']}{cores}"


def results() -> str:
    """The report of all runs that are kept."""
    runs = sorted(path for path in (RESULTS / "evaluation").glob("*") if path.is_dir())
    return (
        to_markdown(list(report_blocks(read_runs(runs))), DOCS).strip() if runs else "No runs yet."
    )


def inspector() -> str:
    """The inspector under load, and what one visitor waits for."""
    found = result("inspector")
    if not found:
        return ""
    memory = found["memory_mib"]
    told = (
        f"{found['clients']} clients for {found['seconds']:.0f} s on {found['machine']['cores']} "
        f"CPU cores, which they share with the server (model `{found['model']}`): "
        f"{found['requests_per_s']:.0f} requests/s, {found['errors']} errors; half of the answers "
        f"within {found['p50_ms']:,.0f} ms, 99% within {found['p99_ms']:,.0f} ms; memory "
        f"{memory['after_10_s']:,.0f} MiB after 10 s, {memory['at_the_end']:,.0f} MiB at the end."
    )
    if felt := found["visitor"]:
        drop, drag = felt["drop_to_program_ms"], felt["drag_ms"]
        told += (
            f" One visitor alone (model `{felt['model']}`, in Chromium): {drop['p50']:,.0f} ms, at "
            f"most {drop['most']:,.0f} ms, from dropping a photograph of {felt['photograph']} to "
            f"its program and preview; {drag['p50']:,.0f} ms, at most {drag['most']:,.0f} ms, from "
            "moving the length to the new R² and preview."
        )
    return told


def study(name: str) -> str:
    """The tables of a study, under the data and the model they are of, and its figures."""
    found = result(f"structure/{name}")
    parts = [f"{found['images']} images of `{found['data']}`, model `{found['model']}`."]
    for each in found["tables"]:
        rows = [[cell(value) for value in row] for row in each["rows"]]
        parts.append(f"**{each['title']}**\n\n{table(each['header'], rows)}")
    for figure in found.get("figures", []):
        path = f"images/structure/{name}-{figure}.png"
        if (DOCS / path).is_file():
            parts.append(f"![{name}, {figure}]({path})")
    return "\n\n".join(parts)


def study_options() -> str:
    """Every option of every study, with its default, from the docstrings."""
    rows = []
    for name in STUDIES:
        kind = find_analysis(name).options
        texts: dict[str, str] = {}
        for base in reversed(kind.__mro__[:-1]):  # options may be inherited
            found = re.findall(r"^ {4}(\w+)  +(\S.*(?:\n {6,}\S.*)*)", base.__doc__, re.M)
            texts |= dict(found)
        for option in fields(kind):
            text = re.sub(r"\s+", " ", texts.get(option.name, "")).replace("<", "&lt;")
            shown = f"`--{option.name.replace('_', '-')}`"
            rows.append([name, shown, f"`{option.default!r}`", text])
    return table(["study", "option", "default", ""], rows)


def erasure_cost() -> str:
    """What all erasures of an image cost."""
    lines = []
    for kind in ("erasure_cpu", "erasure_cuda"):
        for row in result(kind).get("rows", []):
            found = result(kind)
            images = f"{row['images']} image{'s' if row['images'] > 1 else ''}"
            lines.append(
                f"All {found['length']} erasures of {images} take {row['ratio']:.2f} times as long "
                f"as interpreting that many programs in a batch (`{found['setting']}`, "
                f"{found['machine']['device']}, side by side in one run)."
            )
    return "\n".join(lines)


def cell(value: str | float | list[Any] | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def fast_preset() -> str:
    """The trials behind `strop-s-fast`, by their last validation."""
    found = result("fast_preset")["rows"]
    rows = [
        [
            last["name"],
            f"{last['step']:,}",
            f"{last['r2_centred']:.3f}",
            f"{last['r2_centred@64']:.3f}",
            f"{last['cosine']:.3f}",
            f"{last['length_mean']:.1f} ± {last['length_spread']:.1f}",
            f"{last['length_detail_correlation']:.2f}",
            f"{last['codes_used']:.0%}",
        ]
        for last in found
    ]
    header = ["", "steps", "r2_centred", "at forced 64", "cosine", "length", "with variance"]
    floor = f"{found[0]['r2_centred_mean_field']:.2f} and {found[0]['cosine_mean_field']:.2f}"
    return (
        table([*header, "codes"], rows)
        + f"\n\nThe constant mean field has r2_centred and cosine {floor}. `with variance` is the "
        "correlation of length and spatial variance of the teacher's field."
    )


def training_speed() -> str:
    """Whole steps on a named GPU."""
    found = result("train_throughput")
    rows = [
        [
            row["setting"],
            row["preset"],
            str(row["batch"]),
            "1" if row["phase"] == 1 else "2 to 4",
            f"{row['images_per_second']:,.0f}",
            f"{row['steps_per_second']:.1f}",
            f"{row['tflops']:.0f}",
            f"{row['share_of_ceiling']:.0%}",
        ]
        for row in found["rows"]
    ]
    header = [
        "",
        "preset",
        "batch",
        "phase",
        "img/s",
        "steps/s",
        "TFLOP/s",
        "of a matrix product's",
    ]
    return (
        f"Whole steps, optimizer and codebook included, on one {found['machine']['device']} "
        "(bf16, DINOv3-S's shape; fields cached on the GPU, or the teacher online):\n\n"
        + table(header, rows)
    )


def attention() -> str:
    """The masked attention calls, PyTorch's kernels beside our own."""
    found = result("attention")
    rows = [
        [
            row["call"],
            str(row["batch"]),
            f"{row['queries']} x {row['keys']}",
            f"{row['pytorch_forward_and_backward_ms']:.2f}",
            f"{row['ours_forward_and_backward_ms']:.2f}",
        ]
        for row in found["rows"]
    ]
    header = ["forward and backward", "batch", "queries x keys", "PyTorch, ms", "strop, ms"]
    return f"On one {found['machine']['device']}:\n\n{table(header, rows)}"


def status() -> str:
    """The page of capabilities, each with its command, test, evidence and mark."""
    listed = tomllib.loads((DOCS / "status.toml").read_text(encoding="utf-8"))["capability"]
    rows = []
    for entry in listed:
        test, evidence = entry["test"], entry.get("evidence", "")
        for path in filter(None, (test, evidence)):
            if not (ROOT / path.split("::")[0]).exists():
                raise FileNotFoundError(f"status.toml names {path}, which does not exist")
        shown = f"[{Path(evidence).name}](../{evidence})" if evidence else ""
        rows.append(
            [entry["name"], f"`{entry['command']}`", f"`{test}`", shown, MARKS[entry["mark"]]]
        )
    header = ["capability", "command", "test", "evidence", "how far it was taken"]
    return (
        "# Status\n\nGenerated from `docs/status.toml` by `docs/make.py`. *Run on real data* means "
        "real photographs, masks, depth or Blender's CLEVR; *a bundled model, rendered scenes* "
        "means trained weights on images that strop renders; *real architecture, random weights* "
        "means that the code path is the real one but no pretrained weights were at hand; "
        "*fixture only* means small files that the test makes.\n\n" + table(header, rows) + "\n"
    )


def clevr(name: str, study: str = "full", picture: str = "") -> str:
    """Tables of the CLEVR study, as `research/clevr/report.py --summary` left them."""
    blocks: list[Text | Points | Table | Picture] = []
    for each in result("clevr")[study][name]:
        if "text" in each:
            blocks.append(Text(each["text"]))
        elif "points" in each:
            blocks.append(Points(each["points"]))
        else:
            blocks.append(Table("", each["header"], each["rows"]))
    path = DOCS / "images" / "clevr" / f"{picture}.png"
    if picture and path.is_file():
        blocks.append(Picture(path, CAPTIONS[picture.removeprefix("small-")]))
    return to_markdown(blocks, DOCS).strip()


def clevr_mean_image() -> str:
    """The SSIM of the mean image, a floor for that of previews."""
    found = result("mean_image")["sets"]
    scores = [f"{found[kind]['ssim']:.3f} on {label}" for kind, label in CLEVR_DATA.items()]
    return f"The mean image, one for all, has SSIM {', '.join(scores)}."


def clevr_follow() -> str:
    """What chosen lengths follow, and what fields follow without a model."""
    found = result("what_lengths_follow")
    header = ["", "objects", "covered", "outlines"]

    def line(name: str, each: dict[str, Any]) -> list[str]:
        values = [[f"{each[key][bound]:.3f}" for bound in each[key]] for key in header[1:]]
        return [name, *(f"{value} [{low}, {high}]" for value, low, high in values)]

    rows = [line(f"`{name}`", each) for name, each in found["rows"].items()]
    images = next(iter(found["rows"].values()))["images"]
    fields = [
        line(f"`{teacher}`: {FIELD_STATISTICS[name]}", each)
        for teacher, statistics in found["fields"].items()
        for name, each in statistics.items()
    ]
    truth = [
        line("the number of objects", found["objects"]),
        line("outlines² / cover", found["isoperimetric"]),
    ]
    blocks = [
        Text(
            f"Pearson r, with 95 % intervals, of the lengths of {images} held-out scenes with the "
            "number of objects, the share of the image that they cover, and the length of their "
            "outlines:"
        ),
        Table("", header, rows),
        Text(f"The same of {found['images']:,} scenes, without a model:"),
        Table("", header, [*truth, *fields]),
    ]
    return to_markdown(blocks, DOCS).strip()


def speed() -> str:
    """The README's section."""
    return "\n\n".join(filter(None, [encode(), rendering()]))


BLOCKS: dict[str, Callable[[], str]] = {
    "speed": speed,
    "agreement": agreement,
    "fast_preset": fast_preset,
    "training_speed": training_speed,
    "attention": attention,
    "loading": loading,
    "inspector": inspector,
    "rendering_cost": rendering_cost,
    "probe_protocols": probe_protocols,
    "measures": measures,
    "evaluation_speed": evaluation_speed,
    "results": results,
    "teacher_quality": teacher_quality,
    "photos": partial(bundled, "photos"),
    "scenes": partial(bundled, "scenes"),
    "study_options": study_options,
    "erasure_cost": erasure_cost,
    "clevr_settings": partial(clevr, "settings"),
    "clevr_tables": partial(clevr, "paper"),
    "clevr_mean_image": clevr_mean_image,
    "clevr_cost": partial(clevr, "cost"),
    "clevr_lengths": partial(clevr, "lengths", picture="lengths"),
    "clevr_follow": clevr_follow,
    "clevr_changes": partial(clevr, "changes"),
    "clevr_trials": partial(clevr, "trials", picture="rate"),
    "clevr_small_settings": partial(clevr, "settings", study="small"),
    "clevr_small_changes": partial(clevr, "changes", study="small"),
    "clevr_small": partial(clevr, "seeds", study="small"),
    "clevr_small_trials": partial(clevr, "trials", study="small", picture="small-rate"),
    "clevr_small_lengths": partial(clevr, "lengths", study="small", picture="small-lengths"),
    **{
        f"study:{path.stem}": partial(study, path.stem)
        for path in sorted((RESULTS / "structure").glob("*.json"))
    },
}


def filled(text: str) -> str:
    """`text` with every known block made anew."""

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in BLOCKS:
            return match[0]
        return f"<!-- begin: {name} -->\n{BLOCKS[name]()}\n<!-- end: {name} -->"

    pattern = r"<!-- begin: (?P<name>\S+) -->.*?<!-- end: (?P=name) -->"
    return re.sub(pattern, block, text, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    pages = {page: filled(page.read_text(encoding="utf-8")) for page in sorted(DOCS.glob("*.md"))}
    readme = ROOT / "README.md"
    pages[readme] = filled(readme.read_text(encoding="utf-8"))
    pages[DOCS / "status.md"] = status()
    stale = [
        page
        for page, text in pages.items()
        if not page.is_file() or page.read_text(encoding="utf-8") != text
    ]
    for page in stale:
        print(f"{'stale' if check else 'wrote'} {page.relative_to(ROOT)}")
        if not check:
            write_text(page, pages[page])
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
