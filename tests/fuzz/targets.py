"""What is fed: every reader of data from outside, with damaged inputs and the right answers."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from harness import Feed, Target
from mutations import TEXTS, damaged, damaged_json, damaged_text
from PIL import Image

from strop.config import from_dict, override, to_dict
from strop.data.spec import KINDS, open_dataset
from strop.files import read_json, write_json
from strop.images import formats, read_square
from strop.listing import find_images
from strop.program import Program
from strop.training.preset import FOLDER, Preset, load_preset, parse_assignments

CODES = 64


def sample_program(count: int, seed: int = 0, *, quality: bool = False) -> Program:
    random = torch.Generator().manual_seed(seed)
    erased = torch.rand(count, 12, generator=random) < 0.1
    erased[:, 0] = False
    return Program(
        codes=torch.randint(0, CODES, (count, 12), generator=random),
        lengths=torch.randint(1, 13, (count,), generator=random),
        codebook_size=CODES,
        model="0123456789ab-0123456789ab",
        erased=erased,
        names=tuple(f"a/ü {number}.png" for number in range(count)),
        quality=torch.rand(count, generator=random) if quality else None,
    )


def picture(seed: int, width: int = 20, height: int = 14) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def image_bytes(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


# Programs.


def parquet_programs(folder: Path) -> Feed:
    path = folder / "a.parquet"
    programs = [sample_program(count, quality=count > 3) for count in (1, 3, 40)]
    contents = []
    for program in programs:
        program.save(path)
        contents.append(path.read_bytes())

    def feed(draw: random.Random) -> bool:
        number = draw.randrange(len(contents))
        path.write_bytes(damaged(draw, [contents[number]]))
        loaded = Program.load(path)
        assert loaded == programs[number], "altered programs"
        assert loaded.names == programs[number].names, "altered names"
        return True

    return feed


def json_programs(folder: Path) -> Feed:
    path, again = folder / "a.jsonl", folder / "b.jsonl"
    samples = []
    for count in (1, 3):
        sample_program(count, quality=count > 1).save(path)
        samples.append(path.read_text())

    def feed(draw: random.Random) -> bool:
        path.write_bytes(damaged_text(draw, samples))
        loaded = Program.load(path)  # nobody can tell which number was meant
        loaded._check()
        loaded.save(again)
        assert Program.load(again) == loaded
        return True

    return feed


# Configs.


def presets(folder: Path) -> Feed:
    path = folder / "a.toml"
    samples = [each.read_text(encoding="utf-8") for each in sorted(FOLDER.glob("*.toml"))]
    whole = to_dict(load_preset("strop-nano"))
    text = json.dumps(whole)
    keys = [f"{table}.{key}" for table in whole if table != "name" for key in whole[table]]

    def feed(draw: random.Random) -> bool:
        match draw.randrange(4):
            case 0:
                path.write_bytes(damaged_text(draw, samples))
                preset = load_preset(str(path))
            case 1:
                preset = from_dict(Preset, json.loads(damaged_json(draw, text)))
            case _:
                key = draw.choice(keys)
                value = draw.choice((*TEXTS, "0", "-5", "1e9", "[1, 2]", "'a'"))
                preset = override(from_dict(Preset, whole), parse_assignments([f"{key}={value}"]))
        assert from_dict(Preset, to_dict(preset)) == preset
        json.dumps(to_dict(preset), allow_nan=False)
        return True

    return feed


def json_files(folder: Path) -> Feed:
    path = folder / "a.json"
    write_json(path, "thing", 1, {"a": [1, 2.5, None, {"b": "ü"}], "c": {"d": True}})
    samples = [path.read_text()]

    def feed(draw: random.Random) -> bool:
        path.write_bytes(damaged_text(draw, samples))
        payload = read_json(path, "thing", 1)
        assert isinstance(payload, dict)
        return True

    return feed


# Data.


def specs(folder: Path) -> Feed:
    for number in range(3):
        (folder / "pictures" / "a").mkdir(parents=True, exist_ok=True)
        picture(number).save(folder / "pictures" / "a" / f"{number}.png")
    (folder / "pictures" / "loop").symlink_to(folder / "pictures")
    kinds = [kind for kind in KINDS if kind not in ("hf", "lance")]
    queries = "n=3&size=16 seed=1&n=2 limit=1 skip=1&limit=1 labels=folders split=val classes=3"
    queries += " split=train&masks=aug by=color&n=2 n=2&start=7"
    samples = [
        f"{kind}:{path}{query}"
        for kind in kinds
        for path in ("pictures", "")
        for query in ("", *(f"?{each}" for each in queries.split()))
    ]
    samples += ["pictures", "pictures/a", "./pictures", "pictures/**/*.png"]

    def feed(draw: random.Random) -> bool:
        text = damaged_text(draw, samples).decode(errors="surrogateescape")
        if "://" in text or text.startswith(("hf:", "lance:")) or _outside(text, folder):
            return False
        if draw.random() < 0.3:
            return bool(find_images([text]))
        dataset = open_dataset(text)
        assert len(dataset) > 0
        if len(dataset) < 100 and getattr(dataset, "size", 0) <= 256:  # large scenes render slowly
            record = dataset[len(dataset) - 1]
            assert record.image.dtype == torch.uint8
            assert record.image.ndim == 3
        return True

    return feed


def _outside(text: str, folder: Path) -> bool:
    """Whether a path may lead out of the folder: listing a whole disk takes long by right."""
    return ".." in text or "/" in text.replace("pictures", "").replace("/a", "") or "~" in text


def shards(folder: Path) -> Feed:
    from strop.data.shards import ShardDataset

    members = {}
    for number in range(3):
        members[f"{number}.jpg"] = image_bytes(picture(number), "JPEG")
        mask = Image.fromarray(np.full((14, 20), number, np.uint8))
        members[f"{number}.mask.png"] = image_bytes(mask, "PNG")
        members[f"{number}.cls"] = str(number).encode()
        members[f"{number}.json"] = json.dumps({"a": number}).encode()
    samples = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(("ü" * 120 if kind != tarfile.USTAR_FORMAT else "") + name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        samples.append(file.getvalue())
    path = folder / "a.tar"

    def feed(draw: random.Random) -> bool:
        path.write_bytes(damaged(draw, samples))
        dataset = ShardDataset(str(path), classes=3)
        for index in range(len(dataset)):
            record = dataset[index]
            assert record.image.shape[0] == 3
            dataset.raw([index], ["cls", "a"])
        return True

    return feed


def packed(folder: Path) -> Feed:
    from strop.data.pack import pack_dataset
    from strop.data.packed import PackedDataset

    for number in range(3):
        (folder / "in").mkdir(exist_ok=True)
        picture(number).save(folder / "in" / f"{number}.png")
    pack_dataset(str(folder / "in"), folder / "whole", size=16)
    files = sorted(path.name for path in (folder / "whole").iterdir())

    def feed(draw: random.Random) -> bool:
        shutil.rmtree(folder / "copy", ignore_errors=True)
        shutil.copytree(folder / "whole", folder / "copy")
        path = folder / "copy" / draw.choice(files)
        content = path.read_bytes()
        path.write_bytes(
            damaged_json(draw, content.decode())
            if path.suffix == ".json" and draw.random() < 0.7
            else damaged(draw, [content])
        )
        dataset = PackedDataset(folder / "copy")
        for index in range(len(dataset)):
            assert dataset[index].image.shape == (3, dataset.size, dataset.size)
        if len(dataset):
            assert len(dataset.batch([0])) == 1
        return True

    return feed


def layouts(folder: Path) -> Feed:
    """Annotations of COCO, VOC and CLEVR, and a table of ImageNet."""
    for name in ("coco/val2017", "voc/JPEGImages", "voc/SegmentationClass", "clevr/images/val",
                 "voc/ImageSets/Segmentation", "voc/Annotations", "coco/annotations",
                 "clevr/scenes", "imagenet/val"):  # fmt: skip
        (folder / name).mkdir(parents=True)
    for place in ("coco/val2017", "voc/JPEGImages", "clevr/images/val", "imagenet/val"):
        picture(0).save(folder / place / "a.jpg")
    Image.fromarray(np.zeros((14, 20), np.uint8)).save(folder / "voc/SegmentationClass/a.png")
    instances = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"image_id": 1, "category_id": 3}],
        "categories": [{"id": 3, "name": "cat"}],
    }
    thing = {"shape": "cube", "material": "metal", "color": "red", "size": "small",
             "3d_coords": [0.0, 1.0, 2.0], "pixel_coords": [3, 4, 5.0]}  # fmt: skip
    scene = {"image_filename": "a.jpg", "image_index": 0, "objects": [thing], "split": "val"}
    files = {
        "coco/annotations/instances_val2017.json": json.dumps(instances),
        "voc/ImageSets/Segmentation/val.txt": "a\n",
        "voc/Annotations/a.xml": "<annotation><object><name>cat</name><difficult>0</difficult>"
        "</object></annotation>",
        "clevr/scenes/CLEVR_val_scenes.json": json.dumps({"scenes": [scene]}),
        "imagenet/LOC_val_solution.csv": "ImageId,PredictionString\na,n01440764 1 2 3 4\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)

    def feed(draw: random.Random) -> bool:
        name = draw.choice(list(files))
        text = files[name]
        is_json = name.endswith("json") and draw.random() < 0.6
        content = damaged_json(draw, text) if is_json else damaged_text(draw, [text])
        (folder / name).write_bytes(content)
        try:
            dataset = open_dataset(f"{name.partition('/')[0]}:{name.partition('/')[0]}?split=val")
            for index in range(min(3, len(dataset))):
                assert dataset[index].image.dtype == torch.uint8
        finally:
            (folder / name).write_text(text)
        return True

    return feed


# Images.


def images(folder: Path) -> Feed:
    samples = []
    turned = Image.Exif()
    turned[0x0112] = 6
    grey = picture(1).convert("L")
    for kind in (each for each in formats() if each != "AVIF"):
        samples.append(image_bytes(picture(0), kind))
        samples.append(image_bytes(grey, kind))
    samples += [
        image_bytes(picture(2), "JPEG", exif=turned),
        image_bytes(picture(2), "JPEG", progressive=True),
        image_bytes(picture(2).convert("CMYK"), "JPEG"),
        image_bytes(picture(2), "TIFF", exif=turned, compression="tiff_lzw"),
        image_bytes(picture(2).convert("RGBA"), "PNG", exif=turned),
        image_bytes(picture(2).quantize(8), "PNG", transparency=3),
        image_bytes(picture(2).quantize(8), "GIF"),
        image_bytes(Image.fromarray(np.arange(280, dtype=np.uint16).reshape(14, 20)), "PNG"),
        image_bytes(Image.fromarray(np.ones((14, 20), np.float32)), "TIFF"),
        image_bytes(grey, "PNG", save_all=True, append_images=[grey.rotate(90)]),
        image_bytes(picture(2).convert("RGBA"), "WEBP", lossless=True),
        image_bytes(picture(3), "BMP"),
        image_bytes(picture(3).convert("1"), "TIFF", compression="group4"),
    ]

    def feed(draw: random.Random) -> bool:
        square = read_square(damaged(draw, samples), 16, draw.choice(("squash", "crop", "pad")))
        assert square.shape == (3, 16, 16)
        assert square.dtype == torch.uint8
        return True

    return feed


# Models and stores.


def models(model: Path) -> Target:
    def prepare(folder: Path) -> Feed:
        from strop.model.checkpoint import load_folder

        config = (model / "config.json").read_text()
        weights = (model / "model.safetensors").read_bytes()
        whole = load_folder(model).state_dict()
        shutil.copytree(model, folder / "copy")

        def feed(draw: random.Random) -> bool:
            text, content = config.encode(), weights
            match draw.randrange(4):
                case 0:
                    text = damaged_text(draw, [config])
                case 1:
                    text = damaged_json(draw, config)
                case 2:  # the header says what the tensors are
                    end = 8 + int.from_bytes(content[:8], "little")
                    content = damaged(draw, [content[:end]]) + content[end:]
                case 3:
                    content = damaged(draw, [content])
            (folder / "copy" / "config.json").write_bytes(text)
            (folder / "copy" / "model.safetensors").write_bytes(content)
            loaded = load_folder(folder / "copy").state_dict()
            assert loaded.keys() == whole.keys(), "another model"
            assert all(torch.equal(loaded[name], whole[name]) for name in whole), "other weights"
            return True

        return feed

    return prepare


def checkpoints(folder: Path) -> Feed:
    from strop.training.run_checkpoint import read_checkpoint, write_checkpoint

    tensors = {"a": torch.arange(20.0), "b": torch.arange(6).view(2, 3)}
    path = write_checkpoint(folder, tensors, 8, {"counted": 1}, keep=1)
    content = path.read_bytes()

    def feed(draw: random.Random) -> bool:
        path.write_bytes(damaged(draw, [content]))
        found = read_checkpoint(path)
        assert all(torch.equal(found.tensors[name], tensors[name]) for name in tensors)
        return True

    return feed


def stores(folder: Path) -> Feed:
    import pyarrow as pa

    import strop
    from strop.store.schema import StoreInfo
    from strop.store.writer import Writer

    program = sample_program(20)
    info = StoreInfo(
        model="tiny", codes=program.model, lengths="c", codebook_size=CODES, capacity=12
    )
    nothing = pa.nulls(20, pa.float32())
    codes = zip(program.codes.tolist(), program.lengths.tolist(), strict=True)
    active = pa.array([row[:length] for row, length in codes], pa.list_(pa.uint16()))
    table = pa.table({
        "key": list(program.names), "codes": active,
        "length": pa.array(program.lengths.numpy(), pa.uint16()), "quality": nothing,
        "width": pa.array([4] * 20, pa.int32()), "height": pa.array([4] * 20, pa.int32()),
        "source": ["/p"] * 20,
    })  # fmt: skip
    Writer(str(folder / "whole.lance"), info, {}).append(table)
    expected = strop.open_store(str(folder / "whole.lance"))[:]
    files = [path.relative_to(folder / "whole.lance")
             for path in sorted((folder / "whole.lance").rglob("*")) if path.is_file()]  # fmt: skip
    number = 0

    def feed(draw: random.Random) -> bool:
        nonlocal number
        shutil.rmtree(folder / f"copy-{number}.lance", ignore_errors=True)
        number += 1  # what is read is kept by path
        copy = folder / f"copy-{number}.lance"
        shutil.copytree(folder / "whole.lance", copy)
        path = copy / draw.choice(files)
        path.write_bytes(damaged(draw, [path.read_bytes()]))
        store = strop.open_store(str(copy))
        assert store[:] == expected
        assert store.keys == list(expected.names)
        return True

    return feed


# Requests.


def requests(tokenizer: object, malformed: Callable) -> Target:
    def prepare(folder: Path) -> Feed:
        from starlette.testclient import TestClient

        from strop.inspector.server import create_app

        for number in range(2):
            picture(number, 64, 64).save(folder / f"{number}.png")
        app = create_app(tokenizer, name="model", gallery=folder)
        client = TestClient(app, "http://localhost", raise_server_exceptions=False)
        whole = [image_bytes(picture(0, 64, 64), kind) for kind in ("PNG", "JPEG", "WEBP")]
        image = base64.b64encode(whole[0]).decode()
        program = client.post("/api/encode", json={"image": image}).json()["program"]

        def feed(draw: random.Random) -> bool:
            answer = client.send(malformed(client, draw, whole, program))
            assert answer.status_code < 500, answer.text
            assert "Traceback" not in answer.text
            assert str(Path.cwd()) not in answer.text
            if answer.status_code >= 400 and answer.content:
                assert answer.json()["problem"]
                assert answer.json()["remedy"]
            return answer.status_code < 400

        return feed

    return prepare


def all_targets(model: Path, tokenizer: object, malformed: Callable) -> dict[str, Target]:
    """Every target by name."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return {
        "programs, Parquet": parquet_programs,
        "programs, JSON Lines": json_programs,
        "presets and settings": presets,
        "JSON files": json_files,
        "specs and globs": specs,
        "tar shards": shards,
        "packed datasets": packed,
        "annotations": layouts,
        "images": images,
        "model folders": models(model),
        "checkpoints": checkpoints,
        "stores": stores,
        "requests": requests(tokenizer, malformed),
    }
