"""Fill the numbers of README, docs and report from `benchmarks/results`.

The text between `<!-- begin: NAME -->` and `<!-- end: NAME -->` is written by the block NAME below;
no figure in it is typed by hand. `--check` changes nothing and fails if a page is stale.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from strop.analysis.alignment import HEADLINE
from strop.analysis.evaluation_report import read_runs, report_blocks
from strop.analysis.findings import Table
from strop.analysis.page import Block, to_markdown
from strop.analysis.page import picture as link_to
from strop.files import write_text

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REPORT = ROOT / "research" / "report"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(REPORT.glob("*.md")),
]


def result(name: str) -> dict[str, Any]:
    """What a benchmark wrote."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def earlier(name: str, model: str) -> str:
    """A remark on results of a model that a later bundled model of this name has replaced."""
    same = result(f"{name}/bundled")["model"] == model
    return "" if same else f"*Measured with an earlier `{name}`.*"


def with_remark(block: Callable[[], str], path: str, name: str = "photos") -> Callable[[], str]:
    """A block under a remark on the model that its result was measured with."""

    def marked() -> str:
        remark = earlier(name, result(path)["model"]["codes"])
        return f"{remark}\n\n{block()}" if remark else block()

    return marked


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


def cell(value: str | float | list[Any] | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def interval(found: dict[str, float]) -> str:
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def speed() -> str:
    """Encoding speed: absolute on a named GPU, as a ratio on a CPU."""
    gpu, cpu = result("encode_cuda"), result("encode_cpu")
    rows = [
        [
            str(row["batch"]),
            f"{row['teacher_images_per_s']:,.0f}",
            f"{row['encode_images_per_s']:,.0f}",
            f"{row['encode_over_teacher_time']:.2f}",
        ]
        for row in gpu["rows"]
    ]
    last = max((row for row in cpu["rows"] if row["batch"] <= 32), key=lambda row: row["batch"])
    latency = gpu.get("latency")
    return (
        f"`encode` on one {gpu['machine']['device']}: {gpu['setting']}, from uint8 on the device, "
        f"half precision, compiled{', in CUDA graphs' if gpu.get('graphs') else ''}.\n\n"
        + table(["batch", "teacher alone, img/s", "encode, img/s", "encode / teacher time"], rows)
        + (f"\n\n{percentiles(latency)}" if latency else "")
        + f"\n\nOn {cpu['machine']['cores']} CPU cores, `encode` takes "
        f"{last['encode_over_teacher_time']:.2f} times as long as the teacher alone at batch "
        f"{last['batch']}."
    )


def store_size() -> str:
    """What a photograph takes as tokens, and as features in half precision."""
    found = result("photos/bundled")["measured"]
    size = found["values"]["bits_fixed_rate"] / 8
    features = size * found["values"]["compression"] / 2  # relative to single precision
    return (
        f"On {found['images']:,} held-out photographs, the tokens of `photos` take {size:.0f} "
        f"bytes per image on average and its features {features:,.0f} bytes in half precision."
    )


def percentiles(found: dict[str, Any]) -> str:
    """The latency of one image."""
    return (
        f"One image, {found['calls']:,} calls: median {found['p50_ms']:.2f} ms, 99th percentile "
        f"{found['p99_ms']:.2f} ms."
    )


def cost() -> str:
    """What many images take, computed from the largest measured throughput."""
    gpu = result("encode_cuda")
    rate = max(row["encode_images_per_s"] for row in gpu["rows"])
    hours = {count: count / rate / 3600 for count in (10**6, 10**9)}
    return (
        f"At {rate:,.0f} images per second, one {gpu['machine']['device']} encodes a million "
        f"images in {60 * hours[10**6]:.1f} minutes and a billion in {hours[10**9]:,.0f} hours, "
        "if the input pipeline keeps up."
    )


def engines() -> str:
    """Engines on a CPU beside PyTorch, and how far codes agree."""
    found = result("engines")
    names = list(found["rows"][0]["times_torch"])
    rows = [
        [str(row["batch"]), *(f"{row['times_torch'][name]:.2f}" for name in names)]
        for row in found["rows"]
    ]
    lines = []
    for name, each in found["agreement"].items():
        margin = each["largest_margin_where_codes_differ"]
        where = (
            "no code differs"
            if margin is None
            else "where they differ, the cosine similarities of the two nearest codes are at most "
            f"{margin:.1e} apart (median of all tokens: {each['median_margin']:.1e})"
        )
        lines.append(
            f"- `{name}`: {each['equal_codes']:.3%} of {each['codes']:,} codes and "
            f"{each['equal_lengths']:.1%} of lengths equal those of PyTorch; {where}."
        )
    return (
        f"Time relative to PyTorch, {found['setting']}:\n\n{table(['batch', *names], rows)}\n\n"
        f"On {found['images']} photographs:\n\n" + "\n".join(lines)
    )


def files() -> str:
    """The whole command from files beside its halves."""
    rows = []
    for path in sorted(RESULTS.glob("files_*.json")):
        found = result(path.stem)
        rate, machine = found["files_per_s"], found["machine"]
        on_gpu = machine["device"] != "CPU"
        least = min(rate["read"], rate["encode"])
        rows.append(
            [
                f"{found['setting']}; {machine['device']}, {machine['cores']} cores",
                found["slower_half"],
                f"{found['whole_over_slower_half']:.2f}",
                f"{max(rate['read'], rate['encode']) / least:.1f}",
                *([f"{rate['whole']:,.0f}"] if on_gpu else ["–"]),
            ]
        )
    if not rows:
        return "Not measured yet: run `python benchmarks/files.py`."
    header = ["", "slower half", "whole command", "faster half", "files/s"]
    return f"Speed relative to the slower half, start-up included:\n\n{table(header, rows)}"


def scaling() -> str:
    """Time with the length, the resolution and the size of the codebook."""
    parts = []
    names = {"length": "length K", "resolution": "resolution, px", "codebook": "codes"}
    for device in ("cuda", "cpu"):
        if "scaling" not in (found := result(f"encode_{device}")):
            continue
        each = found["scaling"]["rows"]
        rows = [
            [names[row["kind"]], f"{row['value']:,}", f"{row['times']:.2f}"]
            + ([f"{row['memory_mib']:,.0f}"] if device == "cuda" else [])
            for row in each
        ]
        header = ["", "value", "relative time"] + ["peak memory, MiB"] * (device == "cuda")
        parts.append(
            f"{found['machine']['device']}, batch {found['scaling']['batch']}, relative to K = 64, "
            f"256 px and 1,024 codes:\n\n{table(header, rows)}"
        )
    return "\n\n".join(parts) or "Not measured yet: run `python benchmarks/encode.py scaling`."


def encoders() -> str:
    """Encoders of other tokenizers, at their shapes."""
    parts = []
    for device in ("cuda", "cpu"):
        if "others" not in (found := result(f"encode_{device}")):
            continue
        rows = [
            [row["encoder"], str(row["batch"]), f"{row['times']:.2f}"]
            + ([f"{row['images_per_s']:,.0f}"] if device == "cuda" else [])
            for row in found["others"]["rows"]
        ]
        header = ["", "batch", "relative time"] + ["img/s"] * (device == "cuda")
        threads = f", threads: {found['threads']}" if device == "cpu" else ""
        parts.append(f"{found['machine']['device']}{threads}:\n\n{table(header, rows)}")
    return "\n\n".join(parts) or "Not measured yet: run `python benchmarks/encode.py others`."


def agreement() -> str:
    """How often GPU and CPU produce the same codes."""
    found = result("agreement")
    rows = [
        [
            f"`{precision}`" + (" (default)" if precision == "fp16" else ""),
            f"{found[precision]['codes']:.1%}",
            f"{found[precision]['lengths']:.1%}",
        ]
        for precision in ("fp16", "bf16", "fp32")
    ]
    cpu = result("agreement_cpu")
    costs = [
        [f"`{each}`", f"{cpu[each]['codes']:.1%}", f"{cpu[each]['r2_cost']:.4f}"]
        for each in ("fp16", "bf16")
    ]
    close = cpu["close_margins"]
    return (
        f"STROP-S on one {found['machine']['device']} and {found['images']} held-out photographs, "
        "compared with fp32 on a CPU:\n\n"
        + table(["`tok.precision`", "equal active codes", "equal lengths"], rows)
        + f"\n\nThe bundled `photos` on a CPU and {cpu['images']} photographs, where "
        f"{close['share']:.0%} of the active tokens are closer than {close['below']:g} to a second "
        "code:\n\n" + table(["`tok.precision`", "equal active codes", "loss of R²"], costs)
    )


def damage() -> str:
    """How many damaged inputs and killed saves were tested."""
    fuzz, kills = result("fuzz"), result("kills")
    targets = fuzz["targets"].values()
    return (
        f"A long run fed {fuzz['inputs']:,} damaged inputs to {len(targets)} readers: "
        f"{sum(each['refused'] for each in targets):,} were refused, "
        f"{sum(each['accepted'] for each in targets):,} were read, and {fuzz['findings']} broke "
        f"the bounds of 10 s and 2 GB. Of {kills['kills']:,} saves of a model that were killed, "
        f"{kills['unfinished']:,} had not finished; {kills['lost']} lost a model."
    )


def loading() -> str:
    """Loading speed relative to a Pillow loop."""
    found = result("loading")
    rows = [
        [name, f"{same:.2f}", f"{found['times_decode_only'][name]:.2f}"]
        for name, same in found["times_pillow_loop"].items()
    ]
    header = ["", "speed relative to Pillow, decode and resize", "relative to decode only"]
    return f"{found['setting']}, {found['machine']['cores']} cores:\n\n{table(header, rows)}"


def training_speed() -> str:
    """Whole training steps on a named GPU."""
    found = result("train_throughput")
    rows = [
        [
            f"`{row['preset']}`",
            "online" if row["setting"] == "online" else "cached",
            str(row["batch"]),
            "1" if row["phase"] == 1 else "2 to 4",
            f"{row['images_per_second']:,.0f}",
            f"{row['share_of_ceiling']:.0%}",
        ]
        for row in found["rows"]
    ]
    header = ["preset", "fields", "batch", "phase", "img/s", "of matrix-product FLOP/s"]
    return (
        f"Whole steps with optimizer and codebook update on one {found['machine']['device']}, "
        f"bf16, features of DINOv3-S's shape:\n\n{table(header, rows)}"
    )


_LENGTHS = {"chosen by the model": "own lengths", "all K": "all codes"}


def bundled(name: str, *, brief: bool) -> str:
    """A bundled model against baselines of equal bits; `brief` is one small table."""
    found = result(f"{name}/bundled")
    measured = found["measured"]
    values, (own, whole) = measured["values"], measured["budgets"]
    sets = [("own lengths", own), ("all codes", whole)]
    sets += [
        (f"`{where}`, {_LENGTHS[part['budgets'][0]['lengths']]}", part["budgets"][0])
        for where, part in found["also"].items()
    ]
    if brief:
        rows = [
            [
                where,
                f"{each['bits']:.0f}",
                f"{each['model']['cosine']:.3f}",
                f"{each['model']['r2_centred']:.3f}",
                f"{each['baselines']['mean-field']['r2_centred']:.3f}",
                f"{each['margin']['r2_centred']:+.3f}",
            ]
            for where, each in sets
        ]
        header = ["", "bits", "cosine", "R² centred", "mean field", "margin over best baseline"]
        return (
            f"{measured['images']:,} held-out images; lengths {values['length_least']:.0f} to "
            f"{values['length_most']:.0f}, {values['length_mean']:.1f} on average.\n\n"
            + table(header, rows)
        )
    parts = [
        f"**{where}, {each['bits']:.0f} bits per image on average.**\n\n" + _beside(name, each)
        for where, each in sets
    ]
    floor, preview = result("mean_image")["sets"][name], measured["preview"]
    parts.append(
        f"Correlation of length with the spatial variance of the field: "
        f"{values['length_detail_correlation']:.2f}. Codes in use: {values['codebook_used']:.0f} "
        f"%. Preview: PSNR {preview['psnr']:.1f} dB, SSIM {preview['ssim']:.2f}; the mean image: "
        f"{floor['psnr']:.1f} dB, {floor['ssim']:.2f}."
    )
    follows = {"held-out scenes": measured, **{f"`{k}`": p for k, p in found["also"].items()}}
    rows = [
        [where, *(interval(part["complexity"][kind]) for kind in ("pearson", "spearman"))]
        for where, part in follows.items()
        if "complexity" in part
    ]
    if rows:
        parts.append("Length against the number of objects, with 95 % intervals:")
        parts.append(table(["", "Pearson r", "Spearman r"], rows))
    return "\n\n".join(parts)


def _beside(name: str, budget: dict[str, Any]) -> str:
    parts = {f"`{name}`": budget["model"], **budget["baselines"]}
    rows = [[each, *(f"{part[score]:.3f}" for score in HEADLINE)] for each, part in parts.items()]
    margin = [f"{budget['margin'][score]:+.3f}" for score in HEADLINE]
    return table(["", *HEADLINE], [*rows, ["margin over the best", *margin]])


def teachers() -> str:
    """Linear probes on the features of teachers."""
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
        ]
        for row in found["rows"]
    ]
    first = found["rows"][0]
    header = ["teacher", "parameters", "mIoU, %", "mAP, %", "grouping AUC"]
    return (
        f"Probes trained on {first['train_images']} images of {found['data']['train']}, scored on "
        f"{first['val_images']} of {found['data']['val']}, {found['size']} px, with 95 % "
        f"intervals:\n\n{table(header, rows)}"
    )


def inspector() -> str:
    """The inspector under load."""
    found = result("inspector")
    felt, memory = found["visitor"], found["memory_mib"]
    return (
        f"{found['clients']} clients for {found['seconds']:.0f} s on {found['machine']['cores']} "
        f"CPU cores: {found['requests_per_s']:.0f} requests/s, {found['errors']} errors, median "
        f"{found['p50_ms']:,.0f} ms, 99th percentile {found['p99_ms']:,.0f} ms, "
        f"{memory['at_the_end']:,.0f} MiB of memory. One user: "
        f"{felt['drop_to_program_ms']['p50']:,.0f} ms from dropping a photograph to its program, "
        f"{felt['drag_ms']['p50']:,.0f} ms for a change of length."
    )


def rendering() -> str:
    """Rendering speed on a named GPU."""
    gpu = result("render_cuda")
    return (
        f"{gpu['images_per_s']:,.0f} images of {gpu['size']} px per second on one "
        f"{gpu['machine']['device']}, {gpu['images_per_s_with_sampling']:,.0f} including the "
        "sampling of scenes."
    )


def render_match() -> str:
    """How close the renderer is to Blender."""
    found = result("render_match")
    fitted, unjittered = found["lights_fitted"], found["lights_unjittered"]
    height, width = found["size"]
    return (
        f"On {found['scenes']} Blender scenes of {width} x {height} px, rendered again from their "
        f"JSON: PSNR {fitted['psnr_mean']:.1f} dB with fitted lights, "
        f"{unjittered['psnr_mean']:.1f} dB with lights at their default positions, "
        f"{found['mean_image']['psnr_mean']:.1f} dB for the mean image. Mean IoU of instance "
        f"masks: {found['mask_iou']:.3f}."
    )


def attention() -> str:
    """Masked attention: PyTorch's kernels and strop's."""
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


def findings(path: str, page: Path) -> str:
    """The tables of a study under its data and model, and its figures."""
    found = result(path)
    name, _, model = found["model"].rstrip(")").partition(" (")
    remark = earlier(name, model)
    parts = [f"{found['images']} images of `{found['data']}`, model `{found['model']}`. {remark}"]
    for each in found["tables"]:
        rows = [[cell(value) for value in row] for row in each["rows"]]
        parts.append(f"**{each['title']}**\n\n{table(each['header'], rows)}")
    for figure in found.get("figures", []):
        picture = REPORT / "images" / "studies" / f"{Path(path).name}-{figure}.png"
        if picture.is_file():
            parts.append(link_to(picture, figure, page.parent))
    return "\n\n".join(parts)


def summary() -> str:
    """The main scores of the bundled models on every dataset that was evaluated."""
    rows = []
    for path in sorted((RESULTS / "evaluation").glob("*/*/alignment.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        probe = json.loads((path.parent / "segmentation.json").read_text(encoding="utf-8"))
        miou = {k: each["values"]["miou"] for k, each in probe["representations"].items()}
        values = found["values"]
        rows.append(
            [
                f"`{found['model']['name']}`",
                f"`{found['data']}`",
                f"{values['bits_fixed_rate']:.0f}",
                f"{values['r2_centred']:.3f}",
                f"{values['r2_centred_mean_field']:.3f}",
                f"{values['margin_r2_centred']:+.3f}",
                *(f"{miou[name]:.1f}" for name in ("teacher", "latent", "program-sequence")),
            ]
        )
    header = ["model", "data", "bits", "R² centred", "mean field", "over best baseline"]
    return table([*header, "mIoU teacher", "features", "tokens in order"], rows)


def evaluation(page: Path) -> str:
    """The report of all runs that are kept."""
    runs = sorted(path for path in (RESULTS / "evaluation").glob("*") if path.is_dir())
    return to_markdown(report_blocks(read_runs(runs), page.parent)).strip()


def clevr(name: str) -> str:
    """Tables of the CLEVR study, as `research/clevr/report.py` stored them."""
    blocks: list[Block] = []
    for each in result("clevr")["blocks"][name]:
        blocks += [each["caption"], Table("", each["header"], each["rows"])]
    return to_markdown(blocks).strip()


def corpus_head() -> str:
    """A segmentation head on features from a store, and on the teacher's own."""
    found = result("corpus/head")
    names = {
        "store": "from the store",
        "programs": "reconstructed without a store",
        "teacher": "the teacher's own",
    }
    rows = [
        [
            names[row["features"]],
            f"{row['miou']:.2f} ({min(row['scores']):.2f} to {max(row['scores']):.2f})",
            f"{row['bytes'] / 1e6:,.2f} MB",
            f"{row['reading_s'] / found['rows'][-1]['reading_s']:.2f}",
        ]
        for row in found["rows"]
    ]
    header = ["features", "mIoU, %", "on disk", "time to read, relative to the teacher"]
    data = {"voc": "VOC 2012 (`photos`", "scenes": "rendered scenes (`scenes`"}[found["data"]]
    first = found["rows"][0]
    return (
        f"Linear heads on {data}, {first['images']:,} images for training and testing together), "
        f"mean and range of {len(first['scores'])} seeds, on a CPU. The teacher's features would "
        "be kept in half precision; they are computed from decoded images here.\n\n"
        + table(header, rows)
    )


def corpus_likeness() -> str:
    """How many of the nearest images are also nearest by the teacher's own features."""
    found = result("corpus/likeness")
    overlap = found["overlap_at_10"]
    rows = [
        [kind, *(f"{overlap[name][kind]:.2f}" for name in ("own", "all"))]
        for kind in overlap["own"]
    ]
    own, every = found["mean_length_own"], found["mean_length_all"]
    lengths = [f"own lengths, {own:.1f} tokens on average", f"all {every:.0f} tokens"]
    return (
        f"Share of the ten nearest of {found['images']:,} held-out photographs that are also among "
        "the ten nearest by the teacher's own features, which are pooled in two ways:\n\n"
        + table(["pooling of the features", *lengths], rows)
        + f"\n\nOn these photographs, the approximate index finds {found['recall_at_10']:.1%} of "
        "the exact ten nearest."
    )


def corpus_regions() -> str:
    """Search for regions of the same class."""
    found = result("corpus/regions")
    return (
        f"For regions of the same class on VOC 2012 val ({found['queries']} queries, "
        f"{found['images']} images), the mean average precision is {found['store']:.3f}. With the "
        f"teacher's own patches and all images as candidates it is {found['teacher']:.3f}, so the "
        f"store reaches {found['relative']:.0%}; a random order gives {found['random']:.3f}."
    )


def corpus_latency() -> str:
    """How long searches take as stores grow."""
    found = result("corpus/latency")
    kinds = ("nearest", "search", "region", "codes")
    rows = [
        [
            f"{row['programs']:,}",
            *(f"{row[f'{kind}_ms']:,.0f} ms" for kind in kinds),
            f"{row['recall_at_10']:.3f}",
            f"{row['index_seconds']:.0f} s",
        ]
        for row in found["rows"]
    ]
    header = ["programs", "index alone", "image", "region", "codes", "recall@10", "to build"]
    return (
        f"Median latency on {found['machine']['cores']} CPU cores, on which the stores took "
        "turns. Programs and vectors are synthetic, drawn from the statistics of real "
        "ones. A search also interprets the query, and for a region the candidates. The last "
        "column is CPU time of building the index, without interpreting the programs:\n\n"
        + table(header, rows)
        + growth(found["rows"])
    )


def growth(rows: list[dict[str, Any]]) -> str:
    """How much longer searches take in the largest store than in the smallest."""
    if len(rows) < 2:
        return ""
    first, last = rows[0], rows[-1]
    times = {kind: last[f"{kind}_ms"] / first[f"{kind}_ms"] for kind in ("search", "codes")}
    return (
        f"\n\nWith {last['programs'] / first['programs']:,.0f} times the programs, a search for an "
        f"image takes {times['search']:.1f} times as long, and one by codes, which reads all "
        f"programs, {times['codes']:.0f} times."
    )


def corpus_engines() -> str:
    """Engines beside the bare encode loop."""
    found = result("corpus/engines")
    rates = found["rates"]
    names = {
        "local": "`--engine local`",
        "ray": "`--engine ray`",
        "loops": "the bare loop",
    }
    pairs = [("local", "loops"), ("ray", "loops"), ("ray", "local")]
    cpu = found["images_per_cpu_second"]
    rows = [
        [names[a], names[b], f"{rates[a] / rates[b]:.2f}", f"{cpu[a] / cpu[b]:.2f}"]
        for a, b in pairs
    ]
    return (
        f"Images per second with `photos` on two CPU cores, {found['images']:,} JPEG files of "
        f"256 x 256, without startup time. Each ran {found['rounds']} times, in turns, on a "
        f"machine with other load, so images per CPU second are given as well. The bare loop is "
        f"a process of one thread for each core, which encodes images that were decoded before, "
        f"eight at a time. It is the slower half: decoding alone is "
        f"{rates['decode'] / rates['loops']:.0f} times as fast. Above 1 is faster.\n\n"
        + table(["", "relative to", "images per second", "images per CPU second"], rows)
    )


def corpus_store() -> str:
    """Bytes, rows and fields per second of a store."""
    found = result("corpus/reading")
    million = found["bytes_per_image_without_keys"]
    lines = [
        ["store, bytes per image", f"{found['bytes_per_image']:.1f}"],
        ["with keys of four characters", f"{million:.1f}, or {million:.0f} MB for a million"],
        ["codes and length in Parquet, bytes per image", f"{found['parquet_bytes_per_image']:.1f}"],
        ["finding that no image is new", f"{found['resume_seconds']:.1f} s"],
        ["rows read in order", f"{found['rows_per_second']:,.0f} per second"],
        ["rows read in random order", f"{found['random_rows_per_second']:,.0f} per second"],
        [
            "fields read and reconstructed, relative to the teacher on a CPU",
            f"{found['fields_per_second_over_teacher']:.1f} times as fast",
        ],
    ]
    about = (
        f"`photos`, {found['programs']:,} synthetic programs of {found['mean_length']:.1f} tokens "
        f"on average, {found['machine']['cores']} cores"
    )
    return f"{about}:\n\n{table(['', ''], lines)}"


def corpus_memory() -> str:
    """Memory of the process that writes a store."""
    found = result("corpus/memory")["rows"]
    rows = [[f"{row['images']:,}", f"{row['peak_mib']:,.0f} MiB"] for row in found]
    about = "Peak memory of the process that writes the store, with two workers, tiny images"
    first, last = found[0], found[-1]
    more = last["peak_mib"] / first["peak_mib"] - 1
    return (
        f"{about}:\n\n{table(['images', 'memory'], rows)}\n\n"
        f"It grows by {more:.0%} from {first['images']:,} to {last['images']:,} images."
    )


CODES = {
    "pca": "quantized PCA of whole fields",
    "rq": "residual quantization (faiss) of {} blocks",
    "opq": "optimized product quantization (faiss) of {} blocks",
}


def code_name(name: str) -> str:
    """What a code of `results/corpus/rate.json` is."""
    kind, _, block = name.partition(" ")
    return CODES[kind].format(block)


def corpus_rate() -> str:
    """Bytes an image of other codes of the features, at equal R²."""
    found = result("corpus/rate")
    own, *others = found["programs"]
    rows = [["programs of `photos`", f"{own['bytes']:.0f}", ""]]
    rows += [
        [
            code_name(name),
            "not reached" if size is None else f"{size:.0f}",
            "" if size is None else f"{own['bytes'] / size:.2f}",
        ]
        for name, size in own["bytes_at_equal_r2"].items()
    ]
    lengths = {"own": "own", "allocated": "by `mean_length`, the same mean"}
    points = [
        [
            lengths.get(row["lengths"], f"{row['lengths']} tokens"),
            f"{row['bytes']:.0f}",
            f"{row['r2_centred']:.3f}",
            "–" if row["relative_to_best"] is None else f"{row['relative_to_best']:.2f}",
        ]
        for row in (own, *others)
    ]
    header = ["lengths", "bytes", "R²", "relative to the best other code"]
    return (
        f"Bytes per image at the same R² (channel means), {own['r2_centred']:.3f}, on "
        f"{found['images']:,} held-out photographs, at a fixed rate. Other codes are fitted on "
        f"{found['fitted']:,} photographs.\n\n"
        + table(["code", "bytes", "programs relative to it"], rows)
        + "\n\nPrograms of other lengths, each beside the other code that needs fewest bytes for "
        "the same R²:\n\n" + table(header, points)
    )


PRICE = 3.0
"""Dollars for an hour of an H200."""
KINDS = ("encode", "teacher")


def corpus_cost() -> str:
    """What 10^8 and 10^9 images cost, computed from measurements."""
    encode = result("encode_cuda")
    own, reading = result("corpus/rate")["programs"][0], result("corpus/reading")
    fast = max(encode["rows"], key=lambda row: row["encode_images_per_s"])
    gpu, rates = encode["machine"]["device"], [fast[f"{k}_images_per_s"] for k in KINDS]
    sizes = {name: size for name, size in own["bytes_at_equal_r2"].items() if size is not None}
    best = {
        kind: min(each)
        for kind in CODES
        if (each := [size for name, size in sizes.items() if name.split()[0] == kind])
    }
    kept = {
        "store with its keys": (rates[0], reading["bytes_per_image"]),
        "store and index of search": (
            rates[0],
            reading["bytes_per_image"] + reading["index_bytes_per_image"],
        ),
        **{CODES[kind].partition(" of")[0]: (rates[1], size) for kind, size in best.items()},
        "features in half precision": (rates[1], reading["raw_bytes_per_image"]),
    }
    rows = []
    for power in (8, 9):
        for name, (rate, size) in kept.items():
            hours = 10**power / rate / 3600
            price, gigabytes = f"${hours * PRICE:,.0f}", f"{10**power * size / 1e9:,.0f} GB"
            rows.append([f"10^{power}", name, f"{hours:,.1f} h", price, gigabytes])
    text = (
        f"One {gpu} at ${PRICE:.2f} per hour, {rates[0]:,.0f} images per second for programs and "
        f"{rates[1]:,.0f} for the teacher alone ({encode['setting']}; reading images is not "
        "included, nor is fitting and computing other codes). Sizes are measured with `photos` "
        f"and 192 dimensions, for the R² of its programs, {own['r2_centred']:.3f}; the store "
        "includes keys and checksums, other codes are counted alone."
        f"\n\n{table(['images', 'kept', 'GPU hours', 'price', 'size'], rows)}\n\n"
    )
    path = RESULTS / "corpus" / "interpreting-cuda.json"
    if path.is_file():
        read = result("corpus/interpreting-cuda")
        rate_read = read["fields_per_second"]
        return text + (
            f"Reading features back, from a file of programs to fields on one "
            f"{read['machine']['device']}: {rate_read:,.0f} per second."
        )
    return text + (
        "Reading features back on a GPU has not been measured from end to end: "
        "`benchmarks/corpus.py interpreting` does."
    )


def corpus_kills() -> str:
    """Encoders that were killed at random moments."""
    found = result("corpus/kills")
    names = ("kills", "lost", "doubled", "different")
    rows = [
        [
            {"local": "one machine", "ray": "Ray"}[engine],
            {"driver": "the command", "worker": "a worker"}[victim],
            *(str(found[engine][victim][name]) for name in names),
        ]
        for engine in ("local", "ray")
        if engine in found
        for victim in ("driver", "worker")
    ]
    return (
        "Encoders that were killed with SIGKILL at random moments, after which the same command "
        f"continued ({found['images']} images per store):\n\n"
        + table(["engine", "killed", "times", "rows lost", "duplicated", "changed"], rows)
    )


def fits() -> str:
    """Squash, crop and pad on images that are not square."""
    rows = [
        [
            f"`{row['model']}`, {row['images']} images of `{row['data']}`",
            f"`{row['fit']}`",
            f"{row['r2_centred']:.3f}",
            f"{row['cosine']:.3f}",
            f"{row['inside']:.0%}",
        ]
        for row in result("fit")["rows"]
    ]
    header = ["", "fit", "R² centred", "cosine", "locations inside"]
    return table(header, rows)


def entropy() -> str:
    """Bytes of entropy-coded programs, and R² beside PCA at as many coded bits."""
    parts = []
    rows = []
    for path in sorted(RESULTS.glob("entropy_*.json")):
        found = result(path.stem)
        coded, name = found["coded"], f"`{found['model']}`"
        parts.append(
            f"{name}: {coded['bytes_per_image']:.1f} bytes per image, including its length, "
            f"{100 * coded['of_fixed_rate']:.1f} % of {coded['fixed_bytes_per_image']:.1f} bytes "
            f"at a fixed rate ({coded['images']:,} images of `{label(found['data'])}`; the prior "
            f"takes {found['prior_bytes'] / 1000:.0f} KB)."
        )
        for row in found.get("rates", []):
            margin = row["margin_r2_centred"]
            rows.append(
                [
                    f"{name}, {'own lengths' if row['lengths'] == 'own' else row['lengths']}",
                    f"{row['fixed_bits']:.0f}",
                    f"{row['coded_bits']:.0f}",
                    f"{row['model']['r2_centred']:.3f}",
                    f"{row['pca']['r2_centred']:.3f}",
                    "{value:+.3f} ({low:+.3f} to {high:+.3f})".format(**margin),
                ]
            )
    header = ["tokens", "fixed bits", "coded bits", "R² centred", "PCA", "margin"]
    text = (
        "PCA at as many entropy-coded bits, with quantized coefficients and an adaptive coder of "
        "its own, fitted on other images:"
    )
    return "\n\n".join([*parts, *([text, table(header, rows)] if rows else [])])


FORMS = {
    "representations": "{value:.1f} ({low:.1f} to {high:.1f})",
    "differences": "{value:+.1f} ({low:+.1f} to {high:+.1f})",
    "shares": "{value:.2f} ({low:.2f} to {high:.2f})",
}


def probes() -> str:
    """mIoU of probes on every representation, its differences and shares, by protocol."""
    blocks = []
    for path in sorted(RESULTS.glob("probes_*.json")):
        found = result(path.stem)
        for protocol in dict.fromkeys(row["protocol"] for row in found["rows"]):
            columns = [
                row
                for row in found["rows"]
                if (row["suite"], row["protocol"]) == ("segmentation", protocol)
            ]
            rows = []
            for kind, form in FORMS.items():
                for name in columns[0][kind]:
                    cells = [form.format(**each[kind][name]) for each in columns]
                    rows.append([f"`{name}`" if kind == "representations" else name, *cells])
            seeds = len(next(iter(columns[0]["representations"].values()))["seeds"])
            title = (
                f"`{found['model']}`, protocol `{protocol}`, mIoU in %, mean of {seeds} seeds with "
                "intervals over images:"
            )
            blocks += [title, table(["", *(f"`{label(each['data'])}`" for each in columns)], rows)]
    return "\n\n".join(blocks) or "Not measured yet: run `python benchmarks/probes.py photos`."


def ladder() -> str:
    """Scores of one reader on every rung."""
    if not (RESULTS / "ladder.json").is_file():
        return "Not measured yet: run `python research/reading/ladder.py`."
    found = result("ladder")
    shown = {
        "count_error": "count error",
        "attribute_accuracy": "attribute accuracy",
        "placed_accuracy": "matched by place",
        "position_mae": "position MAE",
    }

    def scored(value: float, low: float, high: float) -> str:
        return f"{value:.3f} ({low:.3f} to {high:.3f})"

    rows = [
        [f"`{name}`", *(scored(*each[key]) for key in shown)]
        for name, seeds in found["rungs"].items()
        for each in seeds
    ]
    about = (
        f"`{found['model']}`, {found['train_scenes']:,} scenes to train on for "
        f"{found['epochs']:g} epochs, {found['test_scenes']:,} to test on, "
        f"{found['mean_length']:.1f} tokens on average:"
    )
    return f"{about}\n\n{table(['', *shown.values()], rows)}"


def label(spec: str) -> str:
    """A spec without the folders of its path."""
    kind, _, rest = spec.partition(":")
    return f"{kind}:{rest.rpartition('/')[2]}"


BLOCKS: dict[str, Callable[[], str]] = {
    "entropy": entropy,
    "probes": probes,
    "ladder": ladder,
    "speed": speed,
    "store_size": store_size,
    "cost": cost,
    "engines": engines,
    "files": files,
    "scaling": scaling,
    "encoders": encoders,
    "agreement": agreement,
    "damage": damage,
    "loading": loading,
    "training_speed": training_speed,
    "photos": partial(bundled, "photos", brief=True),
    "scenes": partial(bundled, "scenes", brief=True),
    "photos_in_full": partial(bundled, "photos", brief=False),
    "scenes_in_full": partial(bundled, "scenes", brief=False),
    "teachers": teachers,
    "summary": summary,
    "inspector": inspector,
    "rendering": rendering,
    "render_match": render_match,
    "attention": attention,
    "corpus_head": with_remark(corpus_head, "corpus/head"),
    "corpus_likeness": with_remark(corpus_likeness, "corpus/likeness"),
    "corpus_regions": with_remark(corpus_regions, "corpus/regions"),
    "corpus_latency": with_remark(corpus_latency, "corpus/latency"),
    "corpus_engines": with_remark(corpus_engines, "corpus/engines"),
    "corpus_store": with_remark(corpus_store, "corpus/reading"),
    "corpus_memory": corpus_memory,
    "corpus_rate": with_remark(corpus_rate, "corpus/rate"),
    "corpus_cost": corpus_cost,
    "corpus_kills": corpus_kills,
    "fits": fits,
}


def block(name: str, page: Path) -> str | None:
    """The text of a block; None if there is no such block."""
    kind, _, rest = name.partition(":")
    if name in BLOCKS:
        return BLOCKS[name]()
    if kind == "findings":
        return findings(rest, page)
    if kind == "clevr":
        return clevr(rest)
    return evaluation(page) if name == "evaluation" else None


def filled(text: str, page: Path) -> str:
    """`text` with every known block generated again."""

    def fill(match: re.Match[str]) -> str:
        made = block(match["name"], page)
        name = match["name"]
        return match[0] if made is None else f"<!-- begin: {name} -->\n{made}\n<!-- end: {name} -->"

    pattern = r"<!-- begin: (?P<name>\S+) -->.*?<!-- end: (?P=name) -->"
    return re.sub(pattern, fill, text, flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page is stale")
    check = parser.parse_args().check
    stale = 0
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = filled(before, page)
        if after != before:
            stale += 1
            print(f"{'stale' if check else 'wrote'} {page.relative_to(ROOT)}")
            if not check:
                write_text(page, after)
    return int(check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
