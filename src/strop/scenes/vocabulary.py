"""The words of a CLEVR scene, and the numbers the CLEVR generator gives them."""

from __future__ import annotations

SHAPES = ("cube", "sphere", "cylinder")
MATERIALS = ("rubber", "metal")
SIZES = ("large", "small")
COLORS = ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
DIRECTIONS = ("behind", "front", "left", "right", "above", "below")

CUBE, SPHERE, CYLINDER = range(3)
RUBBER, METAL = range(2)

RADIUS = (0.7, 0.35)
"""Half the extent of an object along each of its axes, by size, in metres."""

RGB = (
    (87, 87, 87),
    (173, 35, 35),
    (42, 75, 215),
    (29, 105, 20),
    (129, 74, 25),
    (129, 38, 192),
    (41, 208, 208),
    (255, 238, 51),
)
"""The generator's colours, 0 to 255. It uses them as linear values, not as sRGB."""

MIN_OBJECTS, MAX_OBJECTS = 3, 10
EXTENT = 3.0
"""Objects' centres lie in [-3, 3] along x and y."""
MIN_DISTANCE = 0.25
"""The least gap between two objects' bounding circles."""
MARGIN = 0.4
"""The least distance of two centres along each of the four directions of the ground."""
MIN_PIXELS, REFERENCE_SIZE = 200, (240, 320)
"""An object shows at least so many pixels in an image of this (height, width)."""
MAX_RETRIES = 50
"""Positions tried for one object before the whole scene is placed anew."""
RELATION_MARGIN = 0.2
"""How much further along a direction an object must lie to be called left, behind ..."""

CAMERA = (7.48113, -6.50764, 5.34367)
CAMERA_TARGET = (0.0322, -0.0281, 0.0230)
"""What the camera looks at; fitted to coordinates and pixels of scenes the generator made."""
CAMERA_JITTER = 0.5
FOCAL = 35.0 / 32.0
"""Focal length over the width of the sensor, which spans the longer side of the image."""

LIGHTS = ("key", "fill", "back")
LIGHT_POSITIONS = (
    (6.44671, -2.90517, 4.2584),
    (-4.67112, -4.0136, 3.01122),
    (-1.1685, 2.64602, 5.81574),
)
LIGHT_JITTER = 1.0

SHAPE_CLASSES = tuple(f"{material} {shape}" for shape in SHAPES for material in MATERIALS)
"""Semantic classes by shape and material; id 0 is the background."""
CLASSES_BY_SHAPE = ("background", *SHAPE_CLASSES)
CLASSES_BY_COLOR = ("background", *COLORS)
