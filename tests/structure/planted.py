"""A model made by hand, whose tokens own known locations, and images that it reads without error.

The field is 8 by 8 locations in eight blocks of 2 by 4. Token k of a program owns block k, for
k < 7. The last block is shared: it stands as long as token 0 or token 1 does, so that only erasing
both takes it away. A location without an owner is background. Directions of the field are
orthogonal, so an erasure map is 1 where a token's work is gone and 0 elsewhere.

An image has as many objects as its program has codes, one a block; the class of an object, its
shape, color and size follow from the code. Its material is drawn at random: nothing knows it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from strop.data.record import Record
from strop.model.generator import GeneratorConfig
from strop.model.interpreter import InterpreterConfig
from strop.model.length_head import LengthHeadConfig
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import TeacherConfig
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.scenes import vocabulary as words

GRID, LENGTH, CODES, CLASSES = 8, 7, 12, 4
SHARED = LENGTH  # the block that tokens 0 and 1 hold up together
WIDTH = CODES + 2  # a direction for each code, one for the shared block, one for background
BLOCK = torch.arange(GRID)[:, None] // 2 * 2 + torch.arange(GRID)[None] // 4
"""(8, 8): the block of each location."""


def spread(values: Tensor) -> Tensor:
    """What is in each block, (B, 8), at each location, (B, 64)."""
    return values[:, BLOCK.flatten()]


class PlantedTeacher(nn.Module):
    """Reads the direction of each location off the colour of its patch."""

    width = WIDTH

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.one_hot(colours(images).flatten(1), WIDTH).float()


class PlantedInterpreter(nn.Module):
    """Gives each block to its token, and the last one to tokens 0 and 1."""

    def forward(self, z_q: Tensor, active: Tensor) -> Tensor:
        count, length = active.shape
        nothing = torch.tensor(CODES + 1)
        held = torch.full((count, SHARED + 1), CODES + 1)
        held[:, :length] = torch.where(active, z_q.argmax(dim=-1), nothing)
        held[:, SHARED] = torch.where(active[:, :2].any(dim=1), torch.tensor(CODES), nothing)
        return nn.functional.one_hot(spread(held), WIDTH).float()


class PlantedTokenizer(Tokenizer):
    """Writes the code of each block down, in order, and stops at the first without an object."""

    def __init__(self) -> None:
        small = {"width": 8, "depth": 1, "heads": 1, "feedforward": 8}
        config = TokenizerConfig(
            teacher=TeacherConfig(name="planted", width=WIDTH),
            image_size=16 * GRID,
            max_length=LENGTH,
            generator=GeneratorConfig(**small),
            quantizer=QuantizerConfig(codes=CODES, code_width=CODES),
            length_head=LengthHeadConfig(hidden=(4,)),
            interpreter=InterpreterConfig(**small),
        )
        super().__init__(config, teacher=PlantedTeacher())
        self.interpreter = PlantedInterpreter()
        self.quantizer.codebook.copy_(torch.eye(CODES))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        corners = colours(images)[:, ::2, ::4].flatten(1)[:, :LENGTH]
        return corners.clamp(max=CODES - 1), (corners < CODES).sum(dim=1).float()


class PlantedDataset:
    """Images with every part a record can have; a `strop.data.record.Dataset`."""

    name = "planted"
    classes = ("background", *(f"class {number}" for number in range(CLASSES)))
    label_names = classes[1:]

    def __init__(self, count: int = 48, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(3, LENGTH + 1, (count,), generator=random)
        self.codes = torch.randint(0, CODES, (count, LENGTH), generator=random)
        self.materials = torch.randint(0, 2, (count, LENGTH), generator=random)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Record:
        length = int(self.lengths[index])
        code = self.codes[index].clone()
        code[length:] = CODES + 1
        held = torch.cat([code, torch.tensor([CODES])])
        present = torch.arange(LENGTH + 1) < length
        kind = torch.where(present, held % CLASSES + 1, 0)
        labels = torch.zeros(CLASSES, dtype=torch.bool)
        labels[kind[:length] - 1] = True
        return Record(
            image=(pixels(held) * 16).to(torch.uint8).expand(3, -1, -1).contiguous(),
            name=f"planted-{index}",
            semantic=pixels(kind),
            instance=pixels(torch.where(present, torch.arange(LENGTH + 1) + 1, 0)),
            labels=labels,
            scene=scene(code[:length].tolist(), self.materials[index].tolist()),
        )


def colours(images: Tensor) -> Tensor:
    """(B, 8, 8): which direction each patch's colour stands for."""
    return images[:, 0, 8::16, 8::16].long() // 16


def pixels(held: Tensor) -> Tensor:
    """(128, 128): what each pixel's block holds, of (8,)."""
    return spread(held[None]).view(GRID, GRID).repeat_interleave(16, 0).repeat_interleave(16, 1)


def scene(codes: list[int], materials: list[int]) -> dict[str, object]:
    """The objects in CLEVR's JSON, in the order of the program."""
    objects = [
        {
            "shape": words.SHAPES[code % 3],
            "color": words.COLORS[code % 8],
            "size": words.SIZES[code % 2],
            "material": words.MATERIALS[materials[place]],
            "3d_coords": [place % 2 * 3 - 1.5, 2.25 - place // 2 * 1.5, 0.35],
            "rotation": 0.0,
            "pixel_coords": [place % 2 * 64 + 32, place // 2 * 32 + 16, 10.0],
        }
        for place, code in enumerate(codes)
    ]
    return {"objects": objects, "directions": {}, "relationships": {}}
