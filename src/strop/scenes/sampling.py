"""Sample scenes by CLEVR's rules, as a pure function of seed and index.

The camera, the lights and the number of objects are drawn once. Objects are placed one by one, each
at the first of fifty positions that keeps the distance from earlier objects. If there is none, or
if an object shows too few pixels in the end, all objects are drawn again. All decisions are made in
float64, where devices agree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from strop.scenes import camera as cameras
from strop.scenes import hashing
from strop.scenes import vocabulary as words
from strop.scenes.geometry import solids
from strop.scenes.scene import Scenes
from strop.scenes.trace import nearest_of_camera

_ROUND = 64
"""Scenes sampled at once: enough to amortise a call, few enough for the cache of a CPU."""
_GPU_ROUND = 512
_FRAME, _OBJECTS, _PLACES = range(3)


def sample_scenes(
    seed: int, indices: Sequence[int] | Tensor, device: torch.device | str = "cpu"
) -> Scenes:
    """The scenes of `seed` at `indices`, as a batch in float32 on `device`."""
    index = torch.as_tensor(indices, dtype=torch.int64).reshape(-1).cpu().numpy()
    device = torch.device(device)
    found: Scenes | None = None
    pending, attempt = np.arange(len(index)), np.zeros_like(index)
    # The cost on a GPU is per call, on a CPU per scene.
    capacity, most = (_ROUND, 1)
    if device.type == "cuda":
        capacity, most = min(max(_ROUND, len(index)), _GPU_ROUND), 8
    while found is None or len(pending):
        # With few scenes left, make several attempts for each and keep the first valid one.
        tries = max(1, min(most, capacity // max(1, len(pending))))
        now = pending[: max(1, capacity // tries)]
        step = np.arange(tries)
        scenes, good = _attempt(
            seed, index[now].repeat(tries), (attempt[now][:, None] + step).reshape(-1), device
        )
        if found is None:
            found = scenes[torch.zeros(len(index), dtype=torch.int64, device=device)]
        done = good.reshape(-1, tries).any(axis=1)
        chosen = np.arange(len(now)) * tries + good.reshape(-1, tries).argmax(axis=1)
        place = torch.from_numpy(now[done]).to(device)
        new = scenes[torch.from_numpy(chosen[done]).to(device)]
        for part, value in zip(found.parts(), new.parts(), strict=True):
            part[place] = value
        attempt[now] += tries
        pending = np.concatenate([now[~done], pending[len(now) :]])
    return found.to(device, torch.float32)


def object_counts(seed: int, indices: Sequence[int] | Tensor) -> Tensor:
    """(B,) int64: number of objects in the scenes of `seed` at `indices`, without placing them."""
    return _number(_frame(seed, torch.as_tensor(indices, dtype=torch.int64).cpu().numpy()))


def _frame(seed: int, index: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """(B, 13): the numbers drawn once per scene, for object count, camera and lights."""
    return hashing.uniform(hashing.key(seed, index, np.array([_FRAME])), 13, device)


def _number(frame: Tensor) -> Tensor:
    return words.MIN_OBJECTS + _choice(frame[:, 0], words.MAX_OBJECTS - words.MIN_OBJECTS + 1)


def _attempt(
    seed: int, index: np.ndarray, attempt: np.ndarray, device: torch.device
) -> tuple[Scenes, np.ndarray]:
    """One placement for each (index, attempt), both (B,), and whether it satisfies all rules."""
    slots = words.MAX_OBJECTS
    frame = _frame(seed, index, device)
    number = _number(frame)
    camera = frame.new_tensor(words.CAMERA) + words.CAMERA_JITTER * (2 * frame[:, 1:4] - 1)
    lights = frame.new_tensor(words.LIGHT_POSITIONS)
    lights = lights + words.LIGHT_JITTER * (2 * frame[:, 4:].reshape(-1, 3, 3) - 1)

    def draw(kind: int, count: int) -> Tensor:
        """`count` numbers for each object: (B, O, count)."""
        keys = hashing.key(seed, index[:, None], attempt[:, None] * 4 + kind, np.arange(slots))
        return hashing.uniform(keys, count, device)

    drawn = draw(_OBJECTS, 5)
    size = _choice(drawn[..., 0], len(words.SIZES))
    radius = drawn.new_tensor(words.RADIUS)[size]
    present = torch.arange(slots, device=device) < number[:, None]
    places = draw(_PLACES, 2 * words.MAX_RETRIES).reshape(-1, slots, words.MAX_RETRIES, 2)
    places = words.EXTENT * (2 * places - 1)
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
    return scenes, shown.cpu().numpy()


def _choice(number: Tensor, count: int) -> Tensor:
    """A choice among `count` from a number in [0, 1)."""
    return (number * count).to(torch.int64)


def _place(places: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Put each object at the first of its places that is clear of earlier objects.

    `places` (B, O, T, 2), `radius` (B, O). Returns the positions (B, O, 2) and
    whether each object and all earlier ones found a place (B, O).
    """
    ways = cameras.ground_directions()
    axes = places.new_tensor([ways["behind"][:2], ways["left"][:2]])
    position = torch.zeros_like(places[:, :, 0])
    placed = torch.zeros_like(radius, dtype=torch.bool)
    rows = torch.arange(places.shape[0], device=places.device)
    for slot in range(places.shape[1]):
        apart = places[:, slot, :, None] - position[:, None, :slot]
        gap = apart.norm(dim=-1) - radius[:, slot, None, None] - radius[:, None, :slot]
        # CLEVR accepts a distance of exactly zero, which never occurs.
        along = (apart @ axes.T).abs()
        free = (gap >= words.MIN_DISTANCE) & (along >= words.MARGIN).all(dim=-1)
        fits = free.all(dim=-1)
        position[:, slot] = places[rows, slot, fits.to(torch.int8).argmax(dim=1)]
        placed[:, slot] = fits.any(dim=1) & (placed[:, slot - 1] if slot else True)
    return position, placed


def visible_pixels(scenes: Scenes) -> Tensor:
    """(B, O) int64: number of visible pixels of each object in a 320 x 240 image."""
    _, which = nearest_of_camera(solids(scenes), scenes.camera, *words.REFERENCE_SIZE)
    batch, slots = scenes.shape.shape
    counts = torch.zeros(batch, slots + 1, dtype=torch.int64, device=which.device)
    counts.scatter_add_(1, which + 1, torch.ones_like(which))
    return counts[:, 1:]
