"""The field cache and the loaders of batches."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from tiny_training import tiny_config, tiny_fields, tiny_preset

from strop.config import override
from strop.data.loader import image_batches
from strop.data.spec import open_dataset
from strop.errors import FormatError, TeacherError, TrainingError
from strop.identity import of_dataset
from strop.model.decoder import DecoderConfig
from strop.model.teacher import TeacherConfig, load_teacher
from strop.training import field_cache
from strop.training.distributed import Workers
from strop.training.draws import Order, versions
from strop.training.field_cache import (
    cache_fields,
    compute_fields,
    open_fields,
    origin_of,
    teacher_field,
    write_fields,
)
from strop.training.loop import train
from strop.training.preset import TrainingConfig
from strop.training.run_data import CachedFieldLoader, OnlineFieldLoader, open_data, split
from strop.training.views import NUMBERS, draw_versions, version_images, view_images

CPU = torch.device("cpu")
ALONE = Workers()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Twelve small pictures and a broken one."""
    folder = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for number in range(12):
        array = draw.integers(0, 256, (40, 32, 3), dtype=np.uint8)
        Image.fromarray(array).save(folder / f"{number:02d}.png")
    (folder / "05-broken.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def teacher():
    return load_teacher("random:tiny")


def picture_config(**changes):
    return tiny_config(teacher=TeacherConfig(name="random:tiny", width=192, scale=0.4), **changes)


def origin(config=None, training=None, **changes) -> dict[str, object]:
    about = {"data": "here", "teacher_digest": "t", "data_digest": "d", **changes}
    return origin_of(config or tiny_config(), training or TrainingConfig(), **about)


def cached(path, fields=None, **about):
    fields = tiny_fields(10) if fields is None else fields
    return write_fields(path, iter(fields.split(4)), origin(**about), images=len(fields))


def check(cache, config=None, training=None, **changes):
    config = config or tiny_config()
    shape = (config.grid**2, config.teacher.width)
    cache.check(origin(config, training, **changes), shape)


def all_fields(dataset, teacher, training):
    images = image_batches(dataset, size=32, fit="squash")
    return torch.cat(list(compute_fields(images, teacher, training)))


def test_the_cache_holds_the_teachers_fields_of_both_sides(pictures, teacher, tmp_path):
    config = picture_config()
    progress, reports = [], []
    with pytest.warns(UserWarning, match="05-broken"):
        cache = cache_fields(
            tmp_path / "cache.safetensors",
            f"folder:{pictures}",
            config,
            TrainingConfig(),
            progress=lambda *shown: progress.append(shown),
        )
    assert cache.fields.shape == (12, 2, 4, 192)  # the broken one is left out
    assert progress[-1] == ("computing fields", 12, 13)
    dataset = open_dataset(f"folder:{pictures}")
    images = image_batches(dataset, size=32, fit="squash", batch=3, report=reports.append)
    chunks = compute_fields(images, teacher, TrainingConfig())
    fields, again = cache.fields, torch.cat(list(chunks))
    assert torch.allclose(fields.float(), again.float(), atol=0.05)
    assert "05-broken" in reports[0]
    assert not torch.equal(fields[:, 0], fields[:, 1])
    about = cache.origin
    assert (about["teacher"], about["data"]) == ("random:tiny", f"folder:{pictures}")
    assert about["teacher_digest"] == teacher.digest
    assert about["data_digest"] == of_dataset(dataset)


def test_the_cache_is_an_ordinary_safetensors_file(tmp_path):
    fields = tiny_fields(10)
    cache = cached(tmp_path / "cache.safetensors", fields)
    with safe_open(cache.path, "pt") as file:
        assert torch.equal(file.get_tensor("fields"), fields)
        assert file.metadata()["format"] == "strop.fields/1"
    assert torch.equal(cache.fields, fields)


def test_a_cache_that_does_not_fit_is_refused_by_name(tmp_path):
    cache = cached(tmp_path / "cache.safetensors")
    check(cache)
    with pytest.raises(TrainingError, match="image_size was 32, now 64"):
        check(cache, tiny_config(image_size=64))
    with pytest.raises(TrainingError, match="teacher was random:tiny, now dinov3-s"):
        check(cache, tiny_config(teacher=TeacherConfig(name="dinov3-s", width=12)))
    with pytest.raises(TrainingError, match=r"field was \[4, 12\], now \[4, 192\]"):
        check(cache, picture_config())
    with pytest.raises(TrainingError, match="fit was squash, now crop"):
        check(cache, tiny_config(fit="crop"))
    with pytest.raises(TrainingError, match="data was here, now there"):
        check(cache, data="there")


def test_a_cache_of_other_weights_or_files_is_out_of_date(tmp_path):
    cache = cached(tmp_path / "cache.safetensors")
    with pytest.raises(TrainingError, match="teacher_digest was t, now other"):
        check(cache, teacher_digest="other")
    with pytest.raises(TrainingError, match="data_digest was d, now other"):
        check(cache, data_digest="other")
    check(cache, teacher_digest="")  # it cannot be loaded here


def test_a_cache_of_other_versions_is_refused_by_name(tmp_path):
    def made(**settings):
        return cached(tmp_path / "c.safetensors", training=TrainingConfig(**settings))

    one_view = TrainingConfig(flip=False, views=1)
    # as many versions, but a mirror image is not a view
    with pytest.raises(
        TrainingError, match=r"training\.flip was True, now False, training\.view_area was None"
    ):
        check(made(), training=one_view)
    check(made(seed=1, view_area=0.3))  # no view depends on them
    cache = made(flip=False, views=1)
    check(cache, training=one_view)
    check(cache, training=replace(one_view, seed=1))
    for change in ({"view_area": 0.3}, {"flip": True}, {"views": 2}):
        with pytest.raises(TrainingError, match=rf"training\.{next(iter(change))} was .*, now "):
            check(cache, training=replace(one_view, **change))


def test_a_cache_without_its_versions_is_refused(tmp_path):
    path = tmp_path / "cache.safetensors"
    cached(path)
    path.write_bytes(path.read_bytes().replace(b'"versions"', b'"inactive"'))
    with pytest.raises(FormatError, match=r"versions.* is missing.* Delete it"):
        open_fields(path)


def test_damaged_caches_are_recognised(tmp_path):
    path = tmp_path / "cache.safetensors"
    cached(path)
    content = path.read_bytes()
    for damage in (content[:-1], content[:100], b"", b"x" * 5000, content + b"x"):
        path.write_bytes(damage)
        with pytest.raises(FormatError):
            open_fields(path)
    with pytest.raises(FormatError, match=r"cannot be read .*No such file"):
        open_fields(tmp_path / "nowhere.safetensors")


def test_a_full_disk_leaves_no_half_cache(tmp_path, monkeypatch):
    def fails():
        yield tiny_fields(4)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(TrainingError, match="No space left"):
        write_fields(tmp_path / "c.safetensors", fails(), origin(), images=8)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(field_cache, "_HEADER", 64)
    with pytest.raises(TrainingError, match="too long"):
        cached(tmp_path / "c.safetensors", data="x" * 100)


def test_an_empty_dataset_leaves_a_good_cache_alone(tmp_path):
    path = tmp_path / "c.safetensors"
    cached(path)
    before = path.read_bytes()
    with pytest.raises(TrainingError, match="No field could be computed from here"):
        cached(path, tiny_fields(10)[:0])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_epoch_shows_every_image_once_in_a_new_order():
    order = Order(10, 3, seed=1)
    epochs = [torch.cat([order.rows(step) for step in range(3 * e, 3 * e + 3)]) for e in (0, 1)]
    for epoch in epochs:
        assert len(epoch.unique()) == 9
    assert not torch.equal(*epochs)
    assert torch.equal(Order(10, 3, seed=1).rows(4), order.rows(4))
    assert not torch.equal(Order(10, 3, seed=2).rows(4), order.rows(4))


def test_half_of_the_images_are_mirrored():
    drawn = torch.stack([versions(0, step, 64, 2) for step in range(50)])
    assert 0.45 < drawn.float().mean() < 0.55
    assert set(versions(0, 0, 256, 5).tolist()) == {0, 1, 2, 3, 4}


def test_the_held_out_slice_is_apart_and_the_same_for_every_seed():
    kept, held = split(200, 16)
    assert len(held) == 16
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(200))
    assert [len(part) for part in split(50, 16)] == [45, 5]
    assert [len(part) for part in split(5, 16)] == [5, 0]


def test_field_batches_are_a_function_of_the_step_and_split_over_processes():
    fields = tiny_fields(30)
    training = TrainingConfig(steps=10, batch=8, seed=3)
    source = CachedFieldLoader(fields, training, ALONE, device=CPU)
    whole = [source.field_of(next(source.batches(step))) for step in range(6)]
    running = [source.field_of(b) for b in itertools.islice(source.batches(2), 4)]
    for a, b in zip(whole[2:], running, strict=True):
        assert torch.equal(a, b)
    parts = [
        CachedFieldLoader(fields, training, Workers(rank, 2), device=CPU).batches(4)
        for rank in (0, 1)
    ]
    assert torch.equal(torch.cat([source.field_of(next(part)) for part in parts]), whole[4])
    seen = torch.cat([source.rows(step) for step in range(30)])
    assert set(seen.tolist()) == set(range(60))  # each image in both of its versions


def test_online_cached_and_resident_images_give_the_same_fields(pictures, teacher):
    dataset = open_dataset(f"folder:{pictures}?limit=5")  # before the broken one
    training = TrainingConfig(batch=4, seed=1)
    online = OnlineFieldLoader(dataset, teacher, training, ALONE, size=32, fit="squash", device=CPU)
    fields = all_fields(dataset, teacher, training)
    from_cache = CachedFieldLoader(fields, training, ALONE, device=CPU)
    images = torch.stack([dataset[i].image for i in range(5)])
    images = torch.nn.functional.interpolate(images, (32, 32), mode="bicubic", antialias=True)
    for step in (0, 3):
        expected = from_cache.field_of(next(from_cache.batches(step))).float()
        drawn = draw_versions(training, step)
        shown = version_images(images[online.order.rows(step)], drawn, training)
        resident = teacher_field(teacher, shown)
        for field in (online.field_of(next(online.batches(step))), resident):
            # the loader resizes in bytes, which may be a grey level off, and the cache is bf16
            assert torch.nn.functional.cosine_similarity(field, expected, dim=-1).min() > 0.99


def test_views_are_crops_of_the_image_and_the_same_each_time(pictures, teacher):
    dataset = open_dataset(f"folder:{pictures}?limit=5")

    def fields(**changes):
        return all_fields(dataset, teacher, TrainingConfig(**changes))

    made = fields(views=3)
    assert made.shape[1] == TrainingConfig(views=3).versions == 5
    assert torch.equal(made, fields(views=3))
    assert torch.equal(made[:, :2], fields())
    assert not torch.equal(made[:, 2], made[:, 3])
    assert fields(views=2, flip=False).shape[1] == 3


def test_views_are_not_mirrored_without_flips():
    # Left half black, right half white: any unmirrored crop has its left no lighter than its right.
    images = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    images[..., 16:] = 255
    uniform = torch.rand(64, NUMBERS, generator=torch.Generator().manual_seed(0))

    def lighter_left(flip):
        views = view_images(images, uniform, TrainingConfig(flip=flip)).float()
        return (views[..., 0].mean((1, 2)) > views[..., -1].mean((1, 2))).sum().item()

    assert lighter_left(flip=False) == 0
    assert lighter_left(flip=True) > 10


def test_online_views_train(pictures):
    preset = tiny_preset(model=picture_config(), steps=3, batch=4, held_out=1, views=2)
    assert train(preset, f"folder:{pictures}").finished


def test_broken_images_do_not_stop_online_training_and_are_named_at_its_end(pictures):
    preset = tiny_preset(model=picture_config(), steps=8, batch=4, held_out=1)
    with pytest.warns(UserWarning, match=r"1 of 12 records were skipped.*\n.*05-broken"):
        result = train(preset, f"folder:{pictures}")
    assert result.finished


@pytest.mark.parametrize("cache", ["memory", "fields.safetensors"])
def test_broken_images_are_named_when_fields_are_computed(pictures, tmp_path, cache):
    preset = tiny_preset(model=picture_config(), steps=2, batch=4, held_out=1)
    where = cache if cache == "memory" else tmp_path / cache
    with pytest.warns(UserWarning, match=r"1 of 13 records were skipped.*\n.*05-broken"):
        train(preset, f"folder:{pictures}", cache=where)


def test_a_card_does_not_say_where_the_data_lay(pictures, tmp_path):
    preset = tiny_preset(model=picture_config(), steps=2, batch=4, held_out=1)
    train(preset, f"folder:{pictures}?limit=5", out=tmp_path)
    card = (tmp_path / "model/README.md").read_text()
    assert f"folder:{pictures.name}?limit=5 (5 images)" in card
    assert str(pictures.parent) not in card


def test_training_from_a_cache_writes_it_once_and_checks_its_origin(pictures, tmp_path):
    preset = tiny_preset(model=picture_config(), steps=4, batch=4, held_out=1)
    path = tmp_path / "cache.safetensors"
    spec = f"folder:{pictures}"
    first = train(preset, spec, cache=path)
    written = path.stat().st_mtime_ns
    second = train(preset, spec, cache=path)
    assert path.stat().st_mtime_ns == written
    in_memory = train(preset, spec, cache="memory")
    for other in (second, in_memory):
        for name, value in first.tokenizer.state_dict().items():
            assert torch.equal(value, other.tokenizer.state_dict()[name]), name
    with pytest.raises(TrainingError, match=r"data was folder:.*, now folder"):
        train(preset, f"folder:{pictures}?limit=9", cache=path)


def test_a_cache_is_refused_once_the_teacher_or_a_file_has_changed(pictures, tmp_path, monkeypatch):
    folder, path = tmp_path / "pictures", tmp_path / "cache.safetensors"
    shutil.copytree(pictures, folder)
    (folder / "05-broken.png").unlink()
    preset = tiny_preset(model=picture_config(), steps=2, batch=4, held_out=1)
    result = train(preset, f"folder:{folder}", cache=path)
    assert result.tokenizer.teacher_digest == open_fields(path).origin["teacher_digest"] != ""
    loaded = field_cache.load_teacher

    def other(name):
        teacher = loaded(name)
        with torch.no_grad():
            next(teacher.backbone.parameters()).add_(0.5)
        return teacher

    with monkeypatch.context() as changed:
        changed.setattr(field_cache, "load_teacher", other)
        with pytest.raises(TrainingError, match=r"teacher_digest was \w+, now \w+"):
            train(preset, f"folder:{folder}", cache=path)

    def absent(name):
        raise TeacherError("The weights are gated.", "Accept the licence.")

    with monkeypatch.context() as changed:  # a cache is of use where the weights are not
        changed.setattr(field_cache, "load_teacher", absent)
        assert train(preset, f"folder:{folder}", cache=path).finished
    (folder / "03.png").write_bytes((folder / "04.png").read_bytes())
    with pytest.raises(TrainingError, match=r"data_digest was \w+, now \w+"):
        train(preset, f"folder:{folder}", cache=path)


def test_a_run_does_not_resume_on_changed_files(pictures, tmp_path):
    folder = tmp_path / "pictures"
    shutil.copytree(pictures, folder)
    (folder / "05-broken.png").unlink()
    preset = tiny_preset(model=picture_config(), steps=2, batch=4, held_out=1)
    train(preset, f"folder:{folder}", out=tmp_path / "run")
    assert train(preset, f"folder:{folder}", out=tmp_path / "run", resume=True).finished
    os.utime(folder / "03.png", (1, 1))
    with pytest.raises(TrainingError, match=r"data files was [0-9a-f]{12}, now"):
        train(preset, f"folder:{folder}", out=tmp_path / "run", resume=True)


def test_another_teacher_brings_its_own_width_and_scale(pictures):
    preset = tiny_preset(steps=4, batch=4, held_out=1)
    result = train(preset, f"folder:{pictures}?limit=5", teacher="random:tiny")
    config = result.tokenizer.config.teacher
    assert (config.name, config.width) == ("random:tiny", 192)
    assert config.scale == pytest.approx(0.38, rel=0.2)  # its field has a spread of about 1


def test_a_run_on_another_teacher_continues_with_it_and_nothing_else_changed(pictures, tmp_path):
    model = tiny_config(decoder=DecoderConfig(widths=(8, 8, 4, 4)))
    preset, spec = tiny_preset(model=model, steps=2, batch=4), f"folder:{pictures}?limit=5"
    first = train(preset, spec, teacher="random:tiny", out=tmp_path)
    again = train(preset, spec, teacher="random:tiny", out=tmp_path, resume=True)
    assert again.tokenizer.config == first.tokenizer.config
    assert again.tokenizer.about["decoder widths"] == [8, 8, 4, 4]
    with pytest.raises(TrainingError, match="teacher was random:tiny, now random:dinov3-s"):
        train(preset, spec, teacher="random:dinov3-s", out=tmp_path, resume=True)
    deeper = override(preset, {"model.generator.depth": 5})
    with pytest.raises(TrainingError, match=r"model\.generator\.depth was 2, now 5"):
        train(deeper, spec, teacher="random:tiny", out=tmp_path, resume=True)


def test_data_that_cannot_be_used_is_refused_by_name():
    with pytest.raises(TrainingError, match=r"Fields of shape \(20, 2, 4, 9\)"):
        train(tiny_preset(), tiny_fields(20)[..., :9])
    with pytest.raises(TrainingError, match="fewer than one batch"):
        open_data(tiny_preset(), tiny_fields(1), workers=Workers(world=2), device=CPU)


@pytest.mark.parametrize(("processes", "batch"), [(1, 16), (3, 12)])
def test_a_batch_shrinks_to_what_the_images_fill(processes, batch):
    with pytest.warns(UserWarning, match=f"batches have {batch} images"):
        data = open_data(
            tiny_preset(batch=96, held_out=2),
            tiny_fields(20),
            workers=Workers(world=processes),
            device=CPU,
        )
    assert data.preset.training.batch == batch


def test_batches_hold_only_images_that_are_kept():
    fields = torch.arange(40.0).view(20, 2, 1, 1)
    kept = torch.tensor([1, 3, 5, 7, 11, 13, 17, 19])
    training = TrainingConfig(batch=4)
    loader = CachedFieldLoader(fields, training, Workers(), device=torch.device("cpu"), kept=kept)
    batches = loader.batches(0)
    seen = {int(value) // 2 for _ in range(4) for value in next(batches)[0].flatten()}
    assert seen == set(kept.tolist())
