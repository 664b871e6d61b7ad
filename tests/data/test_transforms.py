"""Image, masks, depth and scene stay aligned through every transform."""

from __future__ import annotations

from functools import partial

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.data import VOID, Record, fit_record, stack
from strop.images import PAD_COLOUR, content_box, fit_square

squash, crop, pad = (partial(fit_record, fit=fit) for fit in ("squash", "crop", "pad"))

PALETTE = torch.tensor([[20, 30, 40], [220, 60, 30], [40, 200, 90], [60, 80, 240]])


def blocks(height: int, width: int, seed: int, cells: int = 3) -> Record:
    """A picture whose colours say its mask: a coarse grid of ids, its palette, its depth."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, 4, (cells, cells), generator=generator)
    rows = torch.arange(height) * cells // height
    columns = torch.arange(width) * cells // width
    ids = coarse[rows[:, None], columns]
    return Record(
        image=PALETTE[ids].permute(2, 0, 1).to(torch.uint8).contiguous(),
        name="blocks",
        semantic=ids,
        instance=ids + 1,
        depth=ids.float() * 1.5 + 1,
        labels=torch.ones(2, dtype=torch.bool),
    )


def assert_aligned(record: Record, at_least: float) -> None:
    """Masks and depth agree with each other everywhere, and with the picture but for edges."""
    height, width = record.image.shape[1:]
    assert record.semantic is not None
    assert record.instance is not None
    assert record.depth is not None
    assert record.semantic.shape == record.instance.shape == record.depth.shape == (height, width)
    assert torch.equal(record.instance, record.semantic + 1)
    assert torch.equal(record.depth, record.semantic.float() * 1.5 + 1)
    pixels = record.image.permute(1, 2, 0).reshape(-1, 3).float()
    seen = torch.cdist(pixels, PALETTE.float()).argmin(1).reshape(height, width)
    assert (seen == record.semantic).float().mean() >= at_least


sides = st.integers(12, 90)


@settings(max_examples=60, deadline=None)
@given(height=sides, width=sides, size=st.integers(24, 70), seed=st.integers(0, 99))
def test_transforms_keep_parts_aligned(height: int, width: int, size: int, seed: int) -> None:
    record = blocks(height, width, seed)
    assert_aligned(record, 1.0)
    for moved in (
        squash(record, size),
        crop(record, size),
        fit_record(record, size, "squash", "fast"),
        fit_record(record, size, "crop", "fast"),
    ):
        # Two edges each way, about a pixel wide, may be a mixture of colours.
        assert_aligned(moved, 1 - 4 * 1.2 / min(moved.image.shape[1:]))


@settings(max_examples=30, deadline=None)
@given(height=sides, width=sides, size=sides, seed=st.integers(0, 9))
def test_pixels_are_those_of_fit_square(height: int, width: int, size: int, seed: int) -> None:
    coarse = torch.randint(60, 196, (3, 4, 4), dtype=torch.uint8)
    coarse = torch.nn.functional.interpolate(coarse[None].float(), (height, width), mode="bilinear")
    image = coarse[0].round().to(torch.uint8)
    record = Record(image=image, name="smooth")
    assert torch.equal(squash(record, size).image, fit_square(image, size, "squash"))
    assert torch.equal(crop(record, size).image, fit_square(image, size, "crop"))
    assert torch.equal(pad(record, size).image, fit_square(image, size, "pad"))
    for fit in ("squash", "crop", "pad"):
        fast = fit_record(record, size, fit, "fast").image.int()  # type: ignore[arg-type]
        exact = fit_record(record, size, fit, "exact").image.int()  # type: ignore[arg-type]
        assert (fast - exact).abs().max() <= 2
        assert (fast - exact).abs().float().mean() < 0.6


@settings(max_examples=40, deadline=None)
@given(height=sides, width=sides, size=st.integers(24, 70), seed=st.integers(0, 9))
def test_padding_is_marked_in_every_part(height: int, width: int, size: int, seed: int) -> None:
    for resize in ("exact", "fast"):
        record = fit_record(blocks(height, width, seed), size, "pad", resize)  # type: ignore[arg-type]
        left, top, right, bottom = content_box(width, height, size, "pad")
        inside = torch.zeros(size, size, dtype=torch.bool)
        inside[top:bottom, left:right] = True
        assert record.semantic is not None
        assert record.instance is not None
        assert record.depth is not None
        assert record.valid is not None
        assert torch.equal(record.valid, inside)
        assert (record.semantic[~inside] == VOID).all()
        assert (record.instance[~inside] == 0).all()
        assert (record.depth[~inside] == 0).all()
        padding = record.image[:, ~inside]
        assert torch.equal(padding, torch.tensor(PAD_COLOUR)[:, None].expand_as(padding))
        assert record.semantic[inside].max() < 4
        assert (record.instance[inside] == record.semantic[inside] + 1).all()
        assert record.semantic.dtype == torch.int64
        assert record.depth.dtype == torch.float32
        assert torch.equal(fit_record(record, size, "pad").valid, record.valid)  # type: ignore[arg-type]


def test_a_square_record_is_all_valid_when_padded() -> None:
    square, wide = pad(blocks(30, 30, 0), 30), pad(blocks(20, 30, 0), 30)
    assert square.valid is not None
    assert square.valid.all()
    batch = stack([square, wide], [0, 1])
    assert batch.valid is not None
    assert batch.valid.sum().item() == 30 * 30 + 20 * 30
    assert squash(blocks(20, 30, 0), 30).valid is None


def test_nearest_makes_no_new_ids() -> None:
    record = blocks(31, 47, 3)
    small = squash(record, 9)
    assert small.semantic is not None
    assert record.semantic is not None
    assert set(small.semantic.unique().tolist()) <= set(record.semantic.unique().tolist())


def test_the_scene_moves_with_the_picture() -> None:
    image = torch.zeros(3, 60, 80, dtype=torch.uint8)
    image[:, 20:24, 62:66] = 255  # centred on x = 63.5, y = 21.5
    scene = {
        "objects": [{"pixel_coords": [63.5, 21.5, 9.0], "color": "red"}],
        "directions": {"left": [-1, 0, 0], "right": [1, 0, 0], "front": [0, -1, 0]},
        "relationships": {"left": [[1]], "right": [[]]},
    }
    record = Record(image=image, name="spot", scene=scene)
    for moved in (
        squash(record, 40),
        crop(record, 40),
        pad(record, 40),
    ):
        bright = moved.image[0].float()
        if moved.valid is not None:
            bright = bright * moved.valid
        ys, xs = torch.meshgrid(*(torch.arange(n).float() for n in bright.shape), indexing="ij")
        centre = ((xs * bright).sum() / bright.sum(), (ys * bright).sum() / bright.sum())
        assert moved.scene is not None
        x, y, distance = moved.scene["objects"][0]["pixel_coords"]
        assert abs(centre[0] - x) < 0.3
        assert abs(centre[1] - y) < 0.3
        assert distance == 9.0
    assert scene["objects"][0]["pixel_coords"] == [63.5, 21.5, 9.0]  # the original is left alone
