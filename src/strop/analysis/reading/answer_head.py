"""A head that answers questions from what a reader has made of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.random import seeded
from strop.structure.fitting import NetworkConfig, fit, layer_sizes
from strop.structure.pairs import Pairs
from strop.structure.questions import ANSWERS, Asked
from strop.structure.reader_model import Reader

LONGEST = 24  # words of a question


class Answerer(nn.Module):
    """Words of a question that attend to each other and to what a reader made of the program.

    Without `sees`, the program is taken away: what is left is what questions give away.
    """

    def __init__(self, config: NetworkConfig, words: Sequence[str], sees: bool) -> None:
        super().__init__()
        self.sees = sees
        self.vocabulary = {word: number for number, word in enumerate(["", *words])}
        self.embed = nn.Embedding(len(self.vocabulary), config.width, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(LONGEST, config.width))
        layer = nn.TransformerDecoderLayer(**layer_sizes(config))
        self.layers = nn.TransformerDecoder(layer, config.depth, nn.LayerNorm(config.width))
        self.out = nn.Linear(config.width, len(ANSWERS))

    def forward(self, words: Tensor, memory: Tensor, active: Tensor) -> Tensor:
        """Words `(B, W)`, 0 where there are none, and memory `(B, K, d)` to logits `(B, A)`."""
        x = self.layers(
            self.embed(words) + self.positions[: words.shape[1]],
            memory if self.sees else torch.zeros_like(memory),
            tgt_key_padding_mask=words == 0,
            memory_key_padding_mask=~active,
        )
        return self.out(x[:, 0])

    def numbered(self, asked: Sequence[Asked]) -> Tensor:
        """`(N, W)`: the questions' words by number; a word that is not known is left out."""
        known = [
            [self.vocabulary[word] for word in words_of(each) if word in self.vocabulary]
            for each in asked
        ]
        numbers = torch.zeros(len(asked), max(map(len, known)), dtype=torch.int64)
        for row, words in enumerate(known):
            numbers[row, : len(words)] = torch.tensor(words)
        return numbers.to(self.out.weight.device)

    @torch.no_grad()
    def answer(
        self, reader: Reader, pairs: Pairs, asked: Sequence[Asked], *, batch: int = 512
    ) -> list[str]:
        """The likeliest answer to each question about the programs of `pairs`."""
        words = self.numbered(asked)
        program = pairs.program.to(words.device)
        rows = torch.tensor([each.row for each in asked], device=words.device)
        found: list[str] = []
        for part in torch.arange(len(asked), device=words.device).split(batch):
            codes, active = program.codes[rows[part]], program.active[rows[part]]
            logits = self(words[part], reader.encoder(codes, active), active)
            found += [ANSWERS[index] for index in logits.argmax(-1).tolist()]
        return found


def train_answerer(
    reader: Reader,
    pairs: Pairs,
    asked: Sequence[Asked],
    *,
    sees: bool,
    epochs: float,
    seed: int = 0,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> Answerer:
    """A head on a reader's features, which stay as they are, for questions about such programs."""
    device = reader.device
    vocabulary = sorted({word for each in asked for word in words_of(each)})
    program = pairs.program.to(device)
    rows = torch.tensor([each.row for each in asked], device=device)
    target = torch.tensor([ANSWERS.index(each.answer) for each in asked], device=device)
    with seeded(seed):
        answerer = Answerer(reader.config, vocabulary, sees).to(device)
        words = answerer.numbered(asked)

        def loss(part: Tensor) -> Tensor:
            codes, active = program.codes[rows[part]], program.active[rows[part]]
            with torch.no_grad():
                memory = reader.encoder(codes, active)
            return F.cross_entropy(answerer(words[part], memory, active).float(), target[part])

        fit(answerer, loss, len(asked), epochs=epochs, seed=seed, watch=watch)
    return answerer


def words_of(asked: Asked) -> list[str]:
    """The words of a question."""
    return asked.question.text.lower().rstrip("?").split()
