"""Render scenes to images, masks and depth."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from strop.scenes import camera as cameras
from strop.scenes import hashing, shading, trace
from strop.scenes import vocabulary as words
from strop.scenes.geometry import Solids, Vector, dot, each, normal, solids, to_local, vector
from strop.scenes.scene import Scenes
from strop.scenes.shading import Lights, Surface, light_samples, lights

RENDERER_VERSION = 1
"""Incremented when a seed gives other scenes or other pixels."""

FAR = 120.0
"""The depth in metres at which the ground ends in the backdrop."""


SAMPLES = 2
"""Rays per pixel, along each side."""
_SHADOW_SAMPLES = 2
"""Shadow rays per camera ray and lamp, along each side of the lamp."""


class World(NamedTuple):
    """A batch of scenes, prepared for tracing."""

    solid: Solids
    albedo: Vector  # (B, O) each
    metal: Tensor  # (B, O) bool
    lamp: Lights
    camera: Tensor  # (B, 3)


def world(scenes: Scenes) -> World:
    """Prepare `scenes` for tracing."""
    return World(
        solids(scenes),
        shading.albedos(scenes),
        scenes.material == words.METAL,
        lights(scenes),
        scenes.camera,
    )


class Rays(NamedTuple):
    """The camera rays of one image size, which all scenes share."""

    across: Tensor  # (N,)
    down: Tensor  # (N,)
    shadow_across: Tensor  # (S, N) positions on a lamp, in [-1/2, 1/2]
    shadow_up: Tensor  # (S, N)
    mirror_across: Tensor  # (1, N) the same for reflections
    mirror_up: Tensor  # (1, N)


@functools.lru_cache(maxsize=8)
def camera_rays(
    height: int, width: int, device: torch.device | str, samples: int = SAMPLES
) -> Rays:
    """`samples` squared rays per pixel, row by row over the supersampled grid.

    The lamp is divided into a grid of cells. Each ray of a pixel uses its own cells, with one
    position in each, jittered by a hash of the ray index. This gives soft shadows without banding.
    """
    lamp = _SHADOW_SAMPLES
    across, down = cameras.image_plane(height, width, samples, device, torch.float32)
    rows, columns = height * samples, width * samples
    grid = torch.arange(rows * columns, device=device)
    row, column = torch.div(grid, columns, rounding_mode="floor") % samples, grid % samples
    cell = torch.arange(lamp**2, device=device)[:, None]
    cells = samples * lamp
    jitter = hashing.uniform(hashing.key(0, np.arange(rows * columns)), 2 * lamp**2, device)
    first_jitter, second_jitter = jitter.float().T.chunk(2)
    first = (cell % lamp) * samples + column
    second = torch.div(cell, lamp, rounding_mode="floor") * samples + row
    return Rays(
        across,
        down,
        (first + first_jitter) / cells - 0.5,
        (second + second_jitter) / cells - 0.5,
        # The first position of each ray, scaled so that the rays of a pixel cover the lamp.
        (column + first_jitter[:1]) / samples - 0.5,
        (row + second_jitter[:1]) / samples - 0.5,
    )


def _surface(
    scene: World, origin: Vector, direction: Vector, depth: Tensor, which: Tensor
) -> tuple[Surface, Tensor]:
    """The surfaces that rays hit, objects or ground, and whether they hit any."""
    floor = -origin[2] / torch.where(direction[2] < -1e-6, direction[2], -1e-6)
    far = (direction[2] >= -1e-6) | (floor > FAR)
    ground = which < 0
    depth = torch.where(ground, torch.where(far, FAR, floor), depth)
    point = each(lambda o, d: o + depth * d, origin, direction)
    index = which.clamp(min=0)
    solid = Solids(*(value.gather(1, index) for value in scene.solid))
    x, y, z = normal(solid, to_local(solid, point))
    length = torch.rsqrt(dot(direction, direction))
    surface = Surface(
        point=point,
        normal=(
            torch.where(ground, 0.0, x),
            torch.where(ground, 0.0, y),
            torch.where(ground, 1.0, z),
        ),
        view=each(lambda part: -part * length, direction),
        albedo=each(
            lambda part: torch.where(ground, shading.GROUND_ALBEDO, part.gather(1, index)),
            scene.albedo,
        ),
        metal=scene.metal.gather(1, index) & ~ground,
        ground=ground,
        own=which,
    )
    return surface, ~(ground & far)


def _light(scene: World, surface: Surface, shadow: tuple[Tensor, Tensor], dense: bool) -> Vector:
    """Radiance of diffuse and glossy reflection, without mirrors."""
    if dense:
        samples = light_samples(scene.lamp, *shadow)
        seen = trace.visible(scene.solid, surface.point, samples, surface.own)
    else:
        seen = trace.visible_sparse(
            scene.solid, surface.point, surface.normal, scene.lamp, shadow, surface.own
        )
    straight = shading.direct(surface, scene.lamp, seen)
    open_sky, glow = shading.surroundings(surface, scene.solid, scene.albedo)
    share = torch.where(surface.metal, 0.0, open_sky)
    return each(
        lambda s, albedo, g: s + albedo * share * (shading.AMBIENT + shading.BLEED * g),
        straight,
        surface.albedo,
        glow,
    )


def _mirror(scene: World, surface: Surface, shadow: tuple[Tensor, Tensor], dense: bool) -> Vector:
    """Radiance that metal reflects from other objects, the ground and the world."""
    direction = _blur(_reflect(surface.view, surface.normal), shadow)
    depth, which = trace.nearest(scene.solid, surface.point, direction, surface.own, False)
    seen, hit = _surface(scene, surface.point, direction, depth, which)
    light = _light(scene, seen, shadow, dense)
    # Metal in a reflection shows the world alone, because there is a single bounce.
    second = shading.world_radiance(_reflect(seen.view, seen.normal))
    world_light = shading.world_radiance((direction[0], direction[1], direction[2].abs()))
    near, far = shading.GROUND_END
    away = torch.sqrt(seen.point[0] ** 2 + seen.point[1] ** 2)
    fade = ((away - near) / (far - near)).clamp(0.0, 1.0)
    fade = torch.where(seen.ground, torch.where(hit, fade, 1.0), 0.0)

    def mirrored(part: Tensor, albedo: Tensor) -> Tensor:
        again = torch.where(seen.metal, albedo * shading.METAL_TINT * second, 0.0)
        return world_light * fade + (part + again) * (1.0 - fade)

    return each(mirrored, light, seen.albedo)


def _reflect(view: Vector, facing: Vector) -> Vector:
    """Reflection of the view direction at the normal `facing`, (B, N) unit vectors."""
    along = dot(view, facing)
    return each(lambda v, f: 2.0 * along * f - v, view, facing)


def _blur(direction: Vector, place: tuple[Tensor, Tensor]) -> Vector:
    """Spread mirror rays over a small cone by `place` (1, N) in [-1/2, 1/2]."""
    x, y, z = direction
    side, rise = (shading.MIRROR_BLUR * part[0] for part in place)
    spread = x - side * y, y + side * x, z + rise
    length = torch.rsqrt(dot(spread, spread))
    return each(lambda part: part * length, spread)


def radiance(
    scene: World, rays: Rays, size: tuple[int, int], dense: bool, samples: int = SAMPLES
) -> Tensor:
    """Linear red, green and blue along the camera rays: (B, N, 3)."""
    direction = cameras.directions(scene.camera, rays.across, rays.down)
    origin = each(lambda part: part[:, None], vector(scene.camera))
    if dense:
        nothing = torch.full_like(direction[0], -1, dtype=torch.int64)
        depth, which = trace.nearest(scene.solid, origin, direction, nothing, True)
    else:
        depth, which = trace.nearest_of_camera(scene.solid, scene.camera, *size, samples)
    surface, _ = _surface(scene, origin, direction, depth, which)
    shadow = (rays.shadow_across, rays.shadow_up)
    light = torch.stack(_light(scene, surface, shadow, dense), dim=-1)
    # One shadow ray per lamp suffices in a mirror, because a pixel has several mirror rays.
    chosen = slice(None) if dense else torch.nonzero(surface.metal[0]).squeeze(-1)
    part = _pick(surface, chosen)
    few = (rays.mirror_across[:, chosen], rays.mirror_up[:, chosen])
    mirror = torch.stack(_mirror(scene, part, few, dense), dim=-1)
    mirror = mirror * torch.stack(part.albedo, dim=-1) * shading.METAL_TINT
    light[:, chosen] += torch.where(part.metal[..., None], mirror, 0.0)
    return light


def _pick(surface: Surface, index: Tensor | slice) -> Surface:
    """The surface points at `index` of the rays."""
    return Surface._make(
        each(lambda part: part[:, index], value) if isinstance(value, tuple) else value[:, index]
        for value in surface
    )


def _resolve(light: Tensor, size: tuple[int, int]) -> Tensor:
    """Average the clipped rays of each pixel: (B, N, 3) to (B, 3, H, W) uint8."""
    grid = light.clamp(0.0, 1.0).reshape(-1, size[0], SAMPLES, size[1], SAMPLES, 3)
    return shading.to_srgb(grid.mean(dim=(2, 4))).permute(0, 3, 1, 2)


def render_dense(scene: World, rays: Rays, size: tuple[int, int]) -> Tensor:
    """(B, 3, H, W) uint8. No shape depends on the data, so it can be compiled for a GPU."""
    return _resolve(radiance(scene, rays, size, True), size)


def render_sparse(scenes: Scenes, size: tuple[int, int]) -> Tensor:
    """The same images as `render_dense`, scene by scene, without impossible intersections."""
    rays = camera_rays(*size, scenes.camera.device)
    images = []
    for row in range(len(scenes)):
        one = world(_without_absent(scenes[row : row + 1]))
        light = radiance(one, rays, size, False)
        images.append(_resolve(light, size))
    return torch.cat(images)


def _without_absent(scenes: Scenes) -> Scenes:
    """A batch of one scene with its present objects, or one absent object if there are none."""
    keep = scenes.present[0].clone()
    keep[0] |= ~keep.any()
    objects = ("shape", "size", "material", "color", "position", "rotation", "present")
    return replace(scenes, **{name: getattr(scenes, name)[:, keep] for name in objects})


@torch.no_grad()
def render(scenes: Scenes, size: int | tuple[int, int] = 128, compiled: bool = False) -> Tensor:
    """Images of `scenes`: (B, 3, H, W) uint8, on the device the scenes are on.

    `size` is the side of a square or (height, width). A GPU runs the compiled dense renderer, and
    so does a CPU if `compiled`. Otherwise it runs the sparse one, which gives the same image up to
    rounding.
    """
    height, width = image_size(size)
    device = scenes.camera.device
    scenes = scenes.to(device, torch.float32)
    if len(scenes) == 0:
        return torch.empty(0, 3, height, width, dtype=torch.uint8, device=device)
    if not (scenes.camera.is_cuda or compiled):
        return render_sparse(scenes, (height, width))
    draw = _compiled()
    rays = camera_rays(height, width, device)
    # Equal chunks, with the last one filled up, limit the shapes to compile and the memory.
    chunk = min(max(1, _CHUNK_PIXELS // (height * width)), 1 << (len(scenes) - 1).bit_length())
    rows = torch.arange(-(-len(scenes) // chunk) * chunk, device=device) % len(scenes)
    parts = [
        draw(world(scenes[rows[i : i + chunk]]), rays, (height, width))
        for i in range(0, rows.shape[0], chunk)
    ]
    return torch.cat(parts)[: len(scenes)]


_CHUNK_PIXELS = 64 * 128 * 128
"""Pixels that the dense renderer computes at once."""


@functools.cache
def _compiled() -> Callable[[World, Rays, tuple[int, int]], Tensor]:
    # Each size and chunk is compiled separately. The default limit is eight.
    limit = torch._dynamo.config
    limit.recompile_limit = max(limit.recompile_limit, 64)
    return torch.compile(render_dense, fullgraph=True, dynamic=False)


def image_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a size, which may be the side of a square."""
    return (size, size) if isinstance(size, int) else size


@torch.no_grad()
def truth(scenes: Scenes, size: int | tuple[int, int] = 128) -> tuple[Tensor, Tensor]:
    """Instance mask and depth at the centre of each pixel, both (B, H, W).

    The mask is int64: 0 for the ground, then 1, 2, ... in the order of the objects. Depth is
    float32, in metres along the axis of the camera, 0 for the backdrop.
    """
    height, width = image_size(size)
    scenes = scenes.to(scenes.camera.device, torch.float32)
    depth, which = trace.nearest_of_camera(solids(scenes), scenes.camera, height, width)
    across, down = cameras.image_plane(height, width, 1, scenes.camera.device, torch.float32)
    _, _, dz = cameras.directions(scenes.camera, across, down)
    floor = scenes.camera[:, 2:] / (-dz).clamp(min=1e-6)
    floor = torch.where(floor > FAR, 0.0, floor)
    depth = torch.where(which < 0, floor, depth)
    shape = (len(scenes), height, width)
    return (which + 1).reshape(shape), depth.reshape(shape)
