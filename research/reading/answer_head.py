"""A head that answers questions from the features of a reader."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from code_transformer import Inputs, NetworkConfig, layer_sizes
from questions import ANSWERS, QuestionAnswer
from reader_network import Reader
from scene_pairs import ScenePairs
from strop.analysis.network_training import StepProgress, train_network
from strop.random import seeded

LONGEST = 24  # words of a question


class AnswerHead(nn.Module):
    """A decoder whose question words attend to each other and to the reader's features.

    Without `sees`, the features are zero: the control that has the question alone.
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
        """Words `(B, W)`, 0 for padding, and memory `(B, K, d)` to logits `(B, A)`."""
        x = self.layers(
            self.embed(words) + self.positions[: words.shape[1]],
            memory if self.sees else torch.zeros_like(memory),
            tgt_key_padding_mask=words == 0,
            memory_key_padding_mask=~active,
        )
        return self.out(x[:, 0])

    def word_ids(self, questions: Sequence[QuestionAnswer]) -> Tensor:
        """`(N, W)`: the ids of the questions' words; unknown words are left out."""
        known = [
            [self.vocabulary[word] for word in words_of(each) if word in self.vocabulary]
            for each in questions
        ]
        numbers = torch.zeros(len(questions), max(map(len, known)), dtype=torch.int64)
        for row, words in enumerate(known):
            numbers[row, : len(words)] = torch.tensor(words)
        return numbers.to(self.out.weight.device)

    @torch.no_grad()
    def answer(
        self,
        reader: Reader,
        pairs: ScenePairs,
        questions: Sequence[QuestionAnswer],
        *,
        batch: int = 512,
    ) -> list[str]:
        """The most probable answer to each question about the programs of `pairs`."""
        words = self.word_ids(questions)
        program = pairs.program.to(words.device)
        rows = torch.tensor([each.row for each in questions], device=words.device)
        found: list[str] = []
        for part in torch.arange(len(questions), device=words.device).split(batch):
            codes, active = program.codes[rows[part]], program.active[rows[part]]
            logits = self(words[part], reader.encoder(Inputs(codes, active)), active)
            found += [ANSWERS[index] for index in logits.argmax(-1).tolist()]
        return found


def train_answer_head(
    reader: Reader,
    pairs: ScenePairs,
    questions: Sequence[QuestionAnswer],
    *,
    sees: bool,
    epochs: float,
    seed: int = 0,
    progress: StepProgress | None = None,
) -> AnswerHead:
    """A head on the features of a frozen reader, trained on questions about programs."""
    device = reader.device
    vocabulary = sorted({word for each in questions for word in words_of(each)})
    program = pairs.program.to(device)
    rows = torch.tensor([each.row for each in questions], device=device)
    target = torch.tensor([ANSWERS.index(each.answer) for each in questions], device=device)
    with seeded(seed):
        head = AnswerHead(reader.config, vocabulary, sees).to(device)
        words = head.word_ids(questions)

        def loss(part: Tensor) -> Tensor:
            codes, active = program.codes[rows[part]], program.active[rows[part]]
            with torch.no_grad():
                memory = reader.encoder(Inputs(codes, active))
            return F.cross_entropy(head(words[part], memory, active).float(), target[part])

        train_network(head, loss, len(questions), epochs=epochs, seed=seed, progress=progress)
    return head


def words_of(each: QuestionAnswer) -> list[str]:
    """The words of a question."""
    return each.question.text.lower().rstrip("?").split()
