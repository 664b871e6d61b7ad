"""Scenes by CLEVR's rules. Scene `index` of `seed` is the same whoever asks, and with what.

The camera, the lights and the number of objects are drawn once. The objects are placed one by
one, each at the first of fifty positions that keeps its distance from those before it. If none
does, or if in the end some object shows too few pixels, all objects are drawn anew. Everything
is decided in float64, where devices agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from strop.scenes import camera as cameras
from strop.scenes import hashing
from strop.scenes import vocabulary as words
from strop.scenes.geometry import solids
from strop.scenes.scene import Scenes
from strop.scenes.trace import nearest_of_camera

_ROUND = 64
"""Scenes tried at once: enough to hide the cost of a call, few enough for a CPU's cache."""
_GPU_ROUND = 512
_FRAME, _OBJECTS, _PLACES = range(3)


def sample_scenes(
    seed: int, indices: Sequence[int] | Tensor, device: torch.device | str = "cpu"
) -> Scenes:
    """The scenes of `seed` at `indices`, as a batch in float32 on `device`."""
    index = torch.as_tensor(indices, dtype=torch.int64).to(device).reshape(-1)
    found: Scenes | None = None
    pending = torch.arange(index.shape[0], device=index.device)
    attempt = torch.zeros_like(index)
    # A GPU is paid by the call, a CPU by the scene.
    capacity, most = (
        (min(max(_ROUND, index.shape[0]), _GPU_ROUND), 8) if index.is_cuda else (_ROUND, 1)
    )
    while pending.numel():
        # Few left: try several attempts of each at once and keep the first that holds.
        tries = max(1, min(most, capacity // pending.numel()))
        now = pending[: max(1, capacity // tries)]
        rows = now.repeat_interleave(tries)
        step = torch.arange(tries, device=index.device).repeat(now.numel())
        scenes, good = _attempt(seed, index[rows], attempt[rows] + step)
        good = good.reshape(-1, tries)
        done = good.any(dim=1)
        first = good.to(torch.int8).argmax(dim=1)
        chosen = torch.arange(now.numel(), device=index.device) * tries + first
        if found is None:
            found = scenes[torch.zeros_like(index)]
        for part, new in zip(found.parts(), scenes[chosen[done]].parts(), strict=True):
            part[now[done]] = new
        attempt[now] += tries
        pending = torch.cat([now[~done], pending[now.numel() :]])
    if found is None:
        found = _attempt(seed, index.new_zeros(1), index.new_zeros(1))[0][:0]
    return found.to(index.device, torch.float32)


def object_counts(seed: int, indices: Sequence[int] | Tensor) -> Tensor:
    """(B,) int64: how many objects the scenes of `seed` at `indices` have, without placing them."""
    return _number(_frame(seed, torch.as_tensor(indices, dtype=torch.int64)))


def _frame(seed: int, index: Tensor) -> Tensor:
    """(B, 13): what is drawn once for each scene: number of objects, camera, lights."""
    return hashing.uniform(hashing.key(seed, index, torch.full_like(index, _FRAME)), 13)


def _number(frame: Tensor) -> Tensor:
    return words.MIN_OBJECTS + _choice(frame[:, 0], words.MAX_OBJECTS - words.MIN_OBJECTS + 1)


def _attempt(seed: int, index: Tensor, attempt: Tensor) -> tuple[Scenes, Tensor]:
    """One placement for each (index, attempt), both (B,), and whether it obeys every rule."""
    device, slots = index.device, words.MAX_OBJECTS
    frame = _frame(seed, index)
    number = _number(frame)
    camera = frame.new_tensor(words.CAMERA) + words.CAMERA_JITTER * (2 * frame[:, 1:4] - 1)
    lights = frame.new_tensor(words.LIGHT_POSITIONS)
    lights = lights + words.LIGHT_JITTER * (2 * frame[:, 4:].reshape(-1, 3, 3) - 1)

    slot = torch.arange(slots, device=device)
    drawn = hashing.uniform(
        hashing.key(seed, index[:, None], attempt[:, None] * 4 + _OBJECTS, slot), 5
    )
    size = _choice(drawn[..., 0], len(words.SIZES))
    radius = drawn.new_tensor(words.RADIUS)[size]
    present = slot < number[:, None]
    places = hashing.uniform(
        hashing.key(seed, index[:, None], attempt[:, None] * 4 + _PLACES, slot),
        2 * words.MAX_RETRIES,
    )
    places = words.EXTENT * (2 * places.reshape(-1, slots, words.MAX_RETRIES, 2) - 1)
    position, placed = _place(places, radius)
    scenes = Scenes(
        shape=_choice(drawn[..., 1], len(words.SHAPES)),
        size=size,
        material=_choice(drawn[..., 2], len(words.MATERIALS)),
        color=_choice(drawn[..., 3], len(words.COLORS)),
        position=position,
        rotation=360.0 * drawn[..., 4],
        present=present,
        camera=camera,
        lights=lights,
    )
    good = (placed | ~present).all(dim=1)
    shown = torch.zeros_like(good)
    keep = torch.nonzero(good).squeeze(-1)
    pixels = visible_pixels(scenes[keep])
    shown[keep] = ((pixels >= words.MIN_PIXELS) | ~present[keep]).all(dim=1)
    return scenes, shown


def _choice(number: Tensor, count: int) -> Tensor:
    """A choice among `count` from a number in [0, 1)."""
    return (number * count).to(torch.int64)


def _place(places: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Put each object at the first of its places that keeps clear of those before it.

    `places` (B, O, T, 2), `radius` (B, O). Returns the positions (B, O, 2) and whether each
    object and all before it found a place (B, O).
    """
    ways = cameras.ground_directions()
    axes = places.new_tensor([ways["behind"][:2], ways["left"][:2]])
    position = torch.zeros_like(places[:, :, 0])
    placed = torch.zeros_like(radius, dtype=torch.bool)
    rows = torch.arange(places.shape[0], device=places.device)
    for slot in range(places.shape[1]):
        apart = places[:, slot, :, None] - position[:, None, :slot]
        gap = apart.norm(dim=-1) - radius[:, slot, None, None] - radius[:, None, :slot]
        # CLEVR lets a distance of exactly zero pass. It never happens.
        along = (apart @ axes.T).abs()
        free = (gap >= words.MIN_DISTANCE) & (along >= words.MARGIN).all(dim=-1)
        fits = free.all(dim=-1)
        position[:, slot] = places[rows, slot, fits.to(torch.int8).argmax(dim=1)]
        placed[:, slot] = fits.any(dim=1) & (placed[:, slot - 1] if slot else True)
    return position, placed


def visible_pixels(scenes: Scenes) -> Tensor:
    """(B, O) int64: how many pixels of a 320 x 240 image show each object."""
    _, which = nearest_of_camera(solids(scenes), scenes.camera, *words.REFERENCE_SIZE)
    batch, slots = scenes.shape.shape
    counts = torch.zeros(batch, slots + 1, dtype=torch.int64, device=which.device)
    counts.scatter_add_(1, which + 1, torch.ones_like(which))
    return counts[:, 1:]
