"""Random programs and the rows of a store that hold them."""

from __future__ import annotations

import pyarrow as pa
import torch

from strop.program import Program
from strop.store.schema import StoreInfo

INFO = StoreInfo(model="tiny", codes="a-b", lengths="c", codebook_size=64, capacity=12)


def draw_program(count: int, seed: int = 0) -> Program:
    random = torch.Generator().manual_seed(seed)
    return Program(
        codes=torch.randint(0, 64, (count, 12), generator=random),
        lengths=torch.randint(1, 13, (count,), generator=random),
        codebook_size=64,
        model="a-b",
        names=tuple(f"{seed}/ü{number:04d}" for number in range(count)),
    )


def rows(program: Program, **changes: object) -> pa.Table:
    count = len(program)
    codes = zip(program.codes.tolist(), program.lengths.tolist(), strict=True)
    columns = {
        "key": list(program.names),
        "codes": pa.array([row[:length] for row, length in codes], pa.list_(pa.uint16())),
        "length": pa.array(program.lengths.numpy(), pa.uint16()),
        "quality": pa.nulls(count, pa.float32()),
        "width": pa.array([640] * count, pa.int32()),
        "height": pa.array([480] * count, pa.int32()),
        "source": ["/photos"] * count,
    }
    return pa.table({**columns, **changes})
