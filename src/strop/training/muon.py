"""Muon: momentum whose singular values are made equal, for the matrices of a transformer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration: they take singular values in (0, 1] near 1 in five rounds."""

ROUNDS = 5
MOMENTUM = 0.95

SPREAD = 0.8
"""The spread of the entries of a step, relative to the learning rate. AdamW's steps are smaller:
with this factor both optimizers are at their best with the same learning rate."""


class Muon(torch.optim.Optimizer):
    """Jordan et al. 2024, with decoupled weight decay and Nesterov momentum.

    Matrices of one shape are orthogonalised together. `blocks` are the parameters; each is as many
    matrices, one above the other, as its number says. If `found_inf` is 1, a step changes nothing.
    """

    def __init__(self, blocks: Mapping[Tensor, int], lr: Tensor, weight_decay: float) -> None:
        super().__init__(list(blocks), {"lr": lr, "weight_decay": weight_decay})
        self.found_inf = torch.zeros(())
        self._alike: dict[tuple[int, int], list[tuple[Tensor, int]]] = {}
        for matrix, count in blocks.items():
            shape = (matrix.shape[0] // count, matrix.shape[1])
            self._alike.setdefault(shape, []).append((matrix, count))
            self.state[matrix]["momentum"] = torch.zeros_like(matrix)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change every matrix by its gradient."""
        (group,) = self.param_groups
        matrices = group["params"]
        momenta = [self.state[matrix]["momentum"] for matrix in matrices]
        # A spoilt gradient may be NaN. The momentum in its place leaves the momentum as it is.
        rate, spoilt = group["lr"] * (1 - self.found_inf), self.found_inf > 0
        gradients = [
            torch.where(spoilt, momentum, matrix.grad)
            for matrix, momentum in zip(matrices, momenta, strict=True)
        ]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead = dict(zip(matrices, torch._foreach_lerp(gradients, momenta, MOMENTUM), strict=True))
        torch._foreach_mul_(matrices, 1 - rate * group["weight_decay"])
        for shape, alike in self._alike.items():
            stacked = torch.cat([ahead[matrix].view(count, *shape) for matrix, count in alike])
            step = orthogonal(stacked) * (rate * -SPREAD * max(shape) ** 0.5)
            parts = step.split([count for _, count in alike])
            torch._foreach_add_(
                [matrix for matrix, _ in alike],
                [part.flatten(0, 1) for part in parts],
            )


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices `(n, rows, columns)` with singular values near 1, in bf16 on a GPU."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)
