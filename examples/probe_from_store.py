"""Train a linear segmentation head on features from a store, beside the teacher's own features.

    python examples/probe_from_store.py                          # rendered scenes, no download
    python examples/probe_from_store.py --voc /data/voc2012      # PASCAL VOC 2012

The same head is trained three times: on fields that the store interprets as they are read, on
fields interpreted from the programs without a store, and on the teacher's fields of the images.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import strop
from strop.data import open_dataset
from strop.files import write_json
from strop.images import fit_square

VOID = 255
Batches = Iterable[tuple[Tensor, list[str]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--voc", help="folder of VOC 2012; default: rendered scenes")
    parser.add_argument("--count", type=int, default=240, help="rendered scenes to train on")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1, help="heads to train on each source")
    parser.add_argument("--json", type=Path, help="also write the scores to this file")
    parser.add_argument("--keep", help="folder for the stores; default: a temporary one")
    options = parser.parse_args()
    tok = strop.load("photos" if options.voc else "scenes")
    size = tok.config.image_size
    if options.voc:
        specs = [f"voc:{options.voc}?split={split}" for split in ("trainaug", "val")]
    else:
        counts = {0: options.count, 1: options.count // 3}
        specs = [f"scenes:?n={n}&seed={seed}&size={size}" for seed, n in counts.items()]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch)
        stores = []
        for part, spec in zip(("train", "val"), specs, strict=True):
            start = time.perf_counter()
            path = str(folder / f"{part}.lance")
            strop.encode_corpus(spec, path, model=tok.about["name"], tokenizer=tok)
            stores.append(strop.open_store(path, model=tok))
            seconds = time.perf_counter() - start
            print(f"encoded {len(stores[-1])} images of {spec} in {seconds:.1f} s")
        masks: dict[str, Tensor] = {}
        images: list[Tensor] = []
        for spec in specs:
            data = open_dataset(spec)
            records = [data[index] for index in range(len(data))]
            masks |= {record.name: square_mask(record.semantic, size) for record in records}
            images.append(torch.stack([fit_square(record.image, size) for record in records]))
        classes = len(data.classes)
        keys = [store.keys for store in stores]
        programs = [store[:] for store in stores]

        def from_store(part: int) -> Batches:
            for batch in stores[part].fields(batch=32):
                yield batch["field"], batch["key"]

        def from_programs(part: int) -> Batches:
            for i in range(0, len(keys[part]), 32):
                yield tok.interpret(programs[part][i : i + 32]), keys[part][i : i + 32]

        def from_teacher(part: int) -> Batches:
            for i in range(0, len(keys[part]), 32):
                yield tok.field(images[part][i : i + 32]), keys[part][i : i + 32]

        count = sum(map(len, keys))
        field = tok.config.grid**2 * tok.config.teacher.width * 2
        on_disk = sum(file.stat().st_size for file in folder.glob("*.lance/data/*"))
        sizes = {"store": on_disk, "programs": on_disk, "teacher": count * field}
        sources = {"store": from_store, "programs": from_programs, "teacher": from_teacher}
        print(f"\n{'features':10} {'mIoU':>6} {'on disk':>10} {'to read':>8} {'to train':>9}")
        rows = []
        for name, source in sources.items():
            scores, reading, training = probe(source, masks, classes, options.epochs, options.seeds)
            miou = statistics.mean(scores)
            rows.append({"features": name, "miou": miou, "bytes": sizes[name], "images": count})
            rows[-1] |= {"scores": scores, "reading_s": reading, "training_s": training}
            kilobytes = f"{sizes[name] / 1000:,.0f} kB"
            print(f"{name:10} {miou:6.2f} {kilobytes:>10} {reading:6.1f} s {training:7.1f} s")
        print("on disk: the teacher's fields would be kept in half precision")
    if options.json is not None:
        write_json(options.json, "probe", 1, {"rows": rows})


def square_mask(mask: Tensor | None, size: int) -> Tensor:
    """Class ids (H, W) to (size, size) uint8."""
    assert mask is not None
    shape = (size, size)
    return F.interpolate(mask[None, None].float(), shape, mode="nearest-exact")[0, 0].byte()


def probe(
    source: Callable[[int], Batches],
    masks: dict[str, Tensor],
    classes: int,
    epochs: int,
    seeds: int,
) -> tuple[list[float], float, float]:
    """mIoU in percent of linear heads, and the seconds of reading fields and of training them."""
    start = time.perf_counter()
    fields, names = read(source(0))
    tested, tested_names = read(source(1))
    reading = time.perf_counter() - start
    start = time.perf_counter()
    known = torch.stack([masks[name] for name in names])
    truth = torch.stack([masks[name] for name in tested_names])
    heads = [train(fields, known, classes, epochs, seed) for seed in range(seeds)]
    scores = [mean_iou(head, tested, truth, classes) for head in heads]
    return scores, reading, time.perf_counter() - start


def read(batches: Batches) -> tuple[Tensor, list[str]]:
    fields, names = zip(*((field.cpu(), keys) for field, keys in batches), strict=True)
    return torch.cat(fields), [name for keys in names for name in keys]


def train(fields: Tensor, truth: Tensor, classes: int, epochs: int, seed: int) -> nn.Module:
    """Batch norm and a linear layer; the target of a patch is the most frequent class in it."""
    side = math.isqrt(fields.shape[1])
    patches = truth.unflatten(1, (side, -1)).unflatten(3, (side, -1)).transpose(2, 3)
    target = patches.flatten(3).flatten(1, 2).mode(dim=-1).values.long()
    torch.manual_seed(seed)
    head = nn.Sequential(nn.BatchNorm1d(fields.shape[-1]), nn.Linear(fields.shape[-1], classes))
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=1e-2)
    steps = epochs * math.ceil(len(fields) / 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(fields)).split(32):
            logits = head(fields[rows].flatten(0, 1))
            loss = F.cross_entropy(logits, target[rows].flatten(), ignore_index=VOID)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return head.eval()


@torch.no_grad()
def mean_iou(head: nn.Module, fields: Tensor, truth: Tensor, classes: int) -> float:
    """Mean intersection over union of the pixels of all images, in percent."""
    side = math.isqrt(fields.shape[1])
    counts = np.zeros((classes, classes), dtype=np.int64)
    for field, mask in zip(fields, truth, strict=True):
        logits = head(field).T.view(1, classes, side, side)
        found = F.interpolate(logits, mask.shape, mode="bilinear").argmax(dim=1)[0]
        known = mask != VOID
        pairs = mask[known].long() * classes + found[known]
        counts += torch.bincount(pairs, minlength=classes**2).view(classes, classes).numpy()
    union = counts.sum(0) + counts.sum(1) - counts.diagonal()
    return float(100 * (counts.diagonal() / np.maximum(union, 1))[union > 0].mean())


if __name__ == "__main__":
    main()
