"""A model whose tokens own known locations, and images that it encodes without error.

The field has 8 x 8 locations in eight blocks of 2 x 4. Token k of a program owns block k, for
k < 7. The last block is shared: it is kept by either token 0 or token 1, so that only erasing both
removes it. A location without an owner is background. The vectors of a field are orthogonal, so
an erasure map is 1 where the field changes and 0 elsewhere.

An image has one object in each block that has a code. The class of an object, its shape, color and
size follow from the code; its material is random and not in the program.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from strop.analysis.subject import Subject
from strop.data.record import Batch, Record
from strop.model.layers import TransformerConfig
from strop.model.length_head import LengthHeadConfig
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import TeacherConfig
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.program import Program
from strop.scenes import vocabulary as words

GRID, LENGTH, CODES, CLASSES = 8, 7, 12, 4
SHARED = LENGTH  # the block that tokens 0 and 1 hold up together
WIDTH = CODES + 2  # a direction for each code, one for the shared block, one for background
BLOCK = torch.arange(GRID)[:, None] // 2 * 2 + torch.arange(GRID)[None] // 4
"""(8, 8): the block of each location."""


def spread(values: Tensor) -> Tensor:
    """Values of blocks (B, 8) to values of locations (B, 64)."""
    return values[:, BLOCK.flatten()]


class PlantedTeacher(nn.Module):
    """One-hot vectors of locations, from the colours of their patches."""

    width = WIDTH
    digest = "planted"

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.one_hot(colours(images).flatten(1), WIDTH).float()


def block_ids(field: Tensor) -> Tensor:
    """The direction of each token's block, of a field (B, 64, WIDTH): (B, 7)."""
    return field.argmax(dim=-1).view(-1, GRID, GRID)[:, ::2, ::4].flatten(1)[:, :LENGTH]


class PlantedGenerator(nn.Module):
    """One-hot raw tokens: token k is the code of block k."""

    def forward(self, field: Tensor) -> Tensor:
        return nn.functional.one_hot(block_ids(field).clamp(max=CODES - 1), CODES).float()


class PlantedLengthHead(nn.Module):
    """The number of blocks that have a code."""

    def forward(self, field: Tensor) -> Tensor:
        return (block_ids(field) < CODES).sum(dim=1).float()


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
    """Encodes the blocks in order and stops at the first one without an object."""

    def __init__(self) -> None:
        small = {"width": CODES, "depth": 1, "heads": 1, "feedforward": 8}
        config = TokenizerConfig(
            teacher=TeacherConfig(name="planted", width=WIDTH),
            image_size=16 * GRID,
            max_length=LENGTH,
            generator=TransformerConfig(**small),
            quantizer=QuantizerConfig(codes=CODES, code_width=CODES),
            length_head=LengthHeadConfig(hidden=(4,)),
            interpreter=TransformerConfig(**small),
        )
        super().__init__(config, teacher=PlantedTeacher())
        self.generator = PlantedGenerator()
        self.length_head = PlantedLengthHead()
        self.interpreter = PlantedInterpreter()
        self.quantizer.codebook.copy_(torch.eye(CODES))
        nn.init.eye_(self.quantizer.project.weight)
        nn.init.zeros_(self.quantizer.project.bias)


class PlantedDataset:
    """Images with all parts of a record except depth; a `strop.data.record.Dataset`."""

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


def subject_of(
    tokenizer: Tokenizer, dataset: PlantedDataset | None = None, **options: object
) -> Subject:
    """A subject on planted images."""
    dataset = dataset or PlantedDataset()
    return Subject(tokenizer=tokenizer, dataset=dataset, data="planted:", **options)


def altered(
    subject: Subject, *, program: Program | None = None, records: Batch | None = None
) -> Subject:
    """A copy of an encoded subject with another program or other records."""
    found = Subject(tokenizer=subject.tokenizer, dataset=subject.dataset, data=subject.data)
    found.__dict__["_encoded"] = (
        subject.records if records is None else records,
        subject.program if program is None else program,
        subject.z,
    )
    return found


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
