"""Time of the two masked attention calls on a GPU: PyTorch's kernels and strop's.

Inputs are views of the outputs of linear layers, and heads are joined afterwards, so that copies
count. CUDA graphs exclude the time of kernel launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from common import machine, save, seconds
from strop.model import short_attention as module
from strop.model.generator import query_visibility

HEADS, WIDTH = 8, 32  # STROP-S and the CLEVR presets
SETTINGS = [  # sources, queries, batch
    (256, 64, 1024),
    (256, 64, 256),
    (64, 32, 2048),
]


def main() -> None:
    torch.manual_seed(0)
    rows = []
    for sources, queries, batch in SETTINGS:
        triangle = query_visibility(sources, queries).cuda()
        active = torch.rand(batch, queries, device="cuda") < 0.5
        active[:, 0] = True
        for call, n, m, visible in [
            ("queries over all", queries, sources + queries, triangle),
            ("grid over program", sources, queries, active[:, None, None]),
        ]:
            row: dict[str, Any] = {"call": call, "batch": batch, "queries": n, "keys": m}
            for name, enabled in [("pytorch", False), ("ours", True)]:
                module.ENABLED = enabled
                row |= {f"{name}_{part}": time for part, time in times(batch, n, m, visible)}
            rows.append(row)

    table = Table(
        "call",
        "batch",
        "shape",
        "PyTorch forward, ms",
        "both",
        "ours forward, ms",
        "both",
        "times faster",
        title=f"masked attention on {machine()['device']}",
    )
    for row in rows:
        pytorch, ours = row["pytorch_forward_and_backward_ms"], row["ours_forward_and_backward_ms"]
        table.add_row(
            row["call"],
            str(row["batch"]),
            f"{row['queries']} x {row['keys']}",
            f"{row['pytorch_forward_ms']:.3f}",
            f"{pytorch:.3f}",
            f"{row['ours_forward_ms']:.3f}",
            f"{ours:.3f}",
            f"{pytorch / ours:.2f}",
        )
    Console().print(table)
    save("attention", {"heads": HEADS, "width": WIDTH, "dtype": "bfloat16", "rows": rows})


def times(batch: int, n: int, m: int, visible: Tensor) -> list[tuple[str, float]]:
    """Milliseconds of `n` queries over `m` keys, forward and in total."""
    rows, keys, values, grad = (
        torch.randn(
            batch, count, parts * HEADS * WIDTH, device="cuda", dtype=torch.bfloat16
        ).narrow(-1, 0, HEADS * WIDTH)
        for count, parts in ((n, 1), (m, 2), (m, 2), (n, 1))
    )
    q, k, v = (
        x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2).requires_grad_()
        for x in (rows, keys, values)
    )

    def forward() -> Tensor:
        return module.short_attention(q, k, v, visible).transpose(1, 2).flatten(2)

    def forward_and_backward() -> None:
        torch.autograd.grad(forward(), (q, k, v), grad)

    return [
        ("forward_ms", 1000 * graphed_seconds(torch.no_grad()(forward))),
        ("forward_and_backward_ms", 1000 * graphed_seconds(forward_and_backward)),
    ]


def graphed_seconds(call: Callable[[], Any]) -> float:
    """Time of the kernels of a call, without launches."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return seconds(graph.replay, at_least=0.1)


if __name__ == "__main__":
    main()
