"""A small autoregressive prior over programs: their probability, and samples."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from strop.analysis.small_transformer import (
    CodeTransformer,
    NetworkConfig,
    StepProgress,
    train_network,
)
from strop.config import from_dict
from strop.errors import FormatError, ProgramError
from strop.files import PathLike, check_format, format_tag
from strop.program import Program
from strop.random import seeded

FORMAT = 1


class Prior(CodeTransformer):
    """A causal transformer over codes; symbol N ends a program.

    A program has at least one code, so it cannot end before it. It must end after K codes, which
    costs nothing.
    """

    def __init__(
        self, config: NetworkConfig, codebook_size: int, capacity: int, model: str
    ) -> None:
        super().__init__(config, codebook_size + 1, capacity)  # the end symbol also starts
        self.codebook_size, self.capacity, self.model = codebook_size, capacity, model
        self.out = nn.Linear(config.width, codebook_size + 1)

    def log_probabilities(self, past: Tensor) -> Tensor:
        """Codes so far `(B, T)`, T less than K, to log-probabilities `(B, T + 1, N + 1)`.

        Row t is that of the symbol after the first t codes.
        """
        start = past.new_full((len(past), 1), self.codebook_size)
        logits = self.out(self(torch.cat([start, past], dim=1))).float()
        impossible = torch.zeros_like(logits, dtype=torch.bool)
        impossible[:, 0, -1] = True
        return logits.masked_fill(impossible, -torch.inf).log_softmax(-1)

    def nats(self, codes: Tensor, lengths: Tensor) -> Tensor:
        """Codes `(B, K)` and lengths `(B,)` to the negative log-probability of programs `(B,)`."""
        place = torch.arange(self.capacity, device=codes.device)
        # The end symbol also replaces the inactive codes after the end, which are not counted.
        symbols = codes.masked_fill(place >= lengths[:, None], self.codebook_size)
        log_p = self.log_probabilities(symbols[:, :-1]).gather(-1, symbols[..., None]).squeeze(-1)
        return -log_p.masked_fill(place > lengths[:, None], 0.0).sum(1)

    @torch.no_grad()
    def bits(self, program: Program, *, batch: int = 256) -> Tensor:
        """`(B,)`: the bits that an ideal entropy coder spends on each program."""
        rows = program.as_batch()
        if (rows.codebook_size, rows.capacity) != (self.codebook_size, self.capacity):
            raise ProgramError(
                f"Programs of {rows.capacity} out of {rows.codebook_size} codes are not of this "
                f"prior, which has {self.capacity} and {self.codebook_size}.",
                "Use the prior of the model that wrote them.",
            )
        if self.model and rows.model and self.model != rows.model:
            raise ProgramError(
                f"The programs are of model {rows.model}, the prior is of {self.model}.",
                "Use the prior of the model that wrote them.",
            )
        rows = rows.to(self.device)
        parts = zip(rows.codes.split(batch), rows.lengths.split(batch), strict=True)
        return torch.cat([self.nats(*part) for part in parts]).cpu() / torch.log(torch.tensor(2.0))

    def surprise(self, program: Program) -> Tensor:
        """`(B,)`: bits per code; high for programs unlike the training data."""
        return self.bits(program) / program.as_batch().lengths.cpu()

    @torch.no_grad()
    def sample(self, count: int, seed: int = 0) -> Program:
        """`count` programs drawn from the prior."""
        random = torch.Generator().manual_seed(seed)
        codes = torch.empty(count, 0, dtype=torch.int64, device=self.device)
        for _ in range(self.capacity):
            odds = self.log_probabilities(codes)[:, -1].exp().cpu()
            drawn = torch.multinomial(odds, 1, generator=random).to(self.device)
            codes = torch.cat([codes, drawn], dim=1)
        ended = codes == self.codebook_size
        lengths = torch.where(ended.any(1), ended.int().argmax(1), self.capacity)
        within = torch.arange(self.capacity, device=self.device) < lengths[:, None]
        return Program(
            codes=codes.where(within, 0),
            lengths=lengths,
            codebook_size=self.codebook_size,
            model=self.model,
        ).to("cpu")

    def to_bytes(self) -> bytes:
        """The prior as a safetensors file, for `load_prior`."""
        about = {
            "format": format_tag("prior", FORMAT),
            "config": json.dumps(asdict(self.config)),
            "codebook_size": str(self.codebook_size),
            "capacity": str(self.capacity),
            "model": self.model,
        }
        return save_tensors({k: v.cpu() for k, v in self.state_dict().items()}, about)


def load_prior(path: PathLike) -> Prior:
    """Read a file of `Prior.to_bytes`; `FormatError` for any other file."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            check_format(about.get("format"), "prior", FORMAT, path)
            prior = Prior(
                from_dict(NetworkConfig, json.loads(about["config"])),
                int(about["codebook_size"]),
                int(about["capacity"]),
                about["model"],
            )
            prior.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise FormatError(f"{path} holds no prior ({error}).", "Run the grammar study.") from error
    return prior.eval()


def train_prior(
    program: Program,
    config: NetworkConfig,
    *,
    epochs: float,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: StepProgress | None = None,
) -> Prior:
    """A prior over programs, trained to minimise the bits per code."""
    program = program.to(device)
    with seeded(seed):
        prior = Prior(config, program.codebook_size, program.capacity, program.model).to(device)

        def loss(rows: Tensor) -> Tensor:
            lengths = program.lengths[rows]
            return prior.nats(program.codes[rows], lengths).sum() / lengths.sum()

        train_network(prior, loss, len(program), epochs=epochs, seed=seed, progress=progress)
    return prior
