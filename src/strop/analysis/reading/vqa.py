"""Questions answered from programs: by a head on the reader's features, by its readings of the
scene, or by a language model; against what the question alone gives away."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from strop.errors import ConfigError, DataError
from strop.figures import MUTED, PALETTE, new_figure, plain_axes
from strop.model.tokenizer import Tokenizer
from strop.statistics import Interval
from strop.structure.answerer import train_answerer
from strop.structure.chat import Endpoint, Transcript
from strop.structure.fitting import NetworkConfig
from strop.structure.pairs import Pairs, training_and_test
from strop.structure.questions import ANSWERS, KINDS, Asked, Question, ask_all
from strop.structure.reader import train_reader
from strop.structure.scene_text import THINK, without_thoughts, write_codes
from strop.structure.scoring import mean_interval
from strop.structure.study import Encoded, Findings, Job, Study, Table
from strop.structure.things import ATTRIBUTES, Things

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROMPT = """\
Answer a question about a CLEVR scene (3-10 objects) from integer codes produced by a visual \
tokenizer (codebook size={size}, codes in [0,{last}]).
Answer with one word or number: yes, no, 0 to 10, or a {attributes}.
The answer only. No prose.{think}"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is learnt from, and for how long; and an endpoint, if a language model is to be asked.

    pairs       spec of the scenes to learn from; without one, the data is split
    test_share  of the data that is then tested on
    epochs      how often the reader sees each pair
    rounds      how often a head sees each question, of which every pair has a few
    width, depth  size of the reader
    seed        of everything random
    base_url, model, key_env, think  as for the llm study
    scenes      scenes that the language model is asked about
    shots       examples in its prompt
    """

    pairs: str = ""
    test_share: float = 0.2
    epochs: int = 40
    rounds: int = 8
    width: int = 128
    depth: int = 3
    seed: int = 0
    base_url: str = ""
    model: str = ""
    key_env: str = "OPENAI_API_KEY"
    think: bool = False
    scenes: int = 15
    shots: int = 50

    def __post_init__(self) -> None:
        if bool(self.base_url) != bool(self.model):
            raise ConfigError(
                "--base-url and --model name an endpoint only together.", "Give both, or none."
            )

    @property
    def reader(self) -> NetworkConfig:
        return NetworkConfig(width=self.width, depth=self.depth)


def run(tokenizer: Tokenizer, encoded: Encoded, options: Options, job: Job) -> Findings:
    """Ask about scenes that nobody learnt from, in every way there is."""
    train, test = training_and_test(tokenizer, encoded, options.pairs, options.test_share, job)
    learnt = ask_all(train.scenes, options.seed)
    asked = ask_all(test.scenes, options.seed + 1)
    reader = train_reader(
        train,
        options.reader,
        epochs=options.epochs,
        seed=options.seed,
        device=tokenizer.device,
        watch=partial(job.watch, "learning to read"),
    )
    guess = majority(learnt)
    guesses = [guess[each.question.template] for each in asked]
    answers = {"most frequent answer of the template": guesses}
    for name, sees in {"the question alone, learnt": False, "reader's features": True}.items():
        answerer = train_answerer(
            reader,
            train,
            learnt,
            sees=sees,
            epochs=options.rounds,
            seed=options.seed,
            watch=partial(job.watch, f"learning to answer ({name})"),
        )
        answers[name] = answerer.answer(reader, test, asked)
    scenes = reader.readings(test.program)
    answers["reader's readings"] = [
        vote(each.question, scenes[each.row], guess)
        for each, guess in zip(asked, guesses, strict=True)
    ]
    right = {name: judge(given, asked) for name, given in answers.items()}
    tables = [accuracy_table("Questions answered from programs", right, asked)]
    numbers: dict[str, object] = {"answers": numbers_by_kind(right, asked)}
    if options.base_url:
        few = [each for each in asked if each.row < options.scenes]
        transcript = _transcript(options, job)
        given = ask_model(transcript, options, train, learnt, test, few, job)
        told = {
            options.model: judge(given, few),
            **{name: each[: len(few)] for name, each in right.items()},
        }
        tables.append(accuracy_table(f"The first {options.scenes} scenes", told, few))
        numbers["language_model"] = numbers_by_kind(told, few)
        numbers["usage"] = transcript.usage()
    return Findings(
        numbers={
            "pairs": len(train),
            "test_scenes": len(test),
            "questions": len(asked),
            **numbers,
        },
        tables=tables,
        figures={"accuracy": draw_accuracy(right, asked)},
        files={"vqa-examples.md": examples(answers, asked, 40)},
        notes=(
            "Share of right answers, with 95 % intervals by bootstrap over questions. A question "
            "is asked only where it has one answer; yes and no are equally frequent. `The "
            "question alone` is the head that reads the program, with the program taken away.",
        ),
    )


def majority(learnt: Sequence[Asked]) -> Mapping[str, str]:
    """The most frequent answer of each template; "no" for one that was never seen."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for each in learnt:
        counts[each.question.template][each.answer] += 1
    best = {template: counter.most_common(1)[0][0] for template, counter in counts.items()}
    return defaultdict(lambda: "no", best)


def vote(question: Question, scenes: Sequence[Things], guess: str) -> str:
    """The answer that most of the scenes give; `guess` where it makes no sense in any."""
    counts = Counter(answer for scene in scenes if (answer := question.answer(scene)) is not None)
    return counts.most_common(1)[0][0] if counts else guess


def ask_model(
    transcript: Transcript,
    options: Options,
    train: Pairs,
    learnt: Sequence[Asked],
    test: Pairs,
    asked: Sequence[Asked],
    job: Job,
) -> list[str]:
    """A language model's answers; what is none of the known answers is no answer."""
    if len(learnt) < options.shots:
        raise DataError(f"There are {len(learnt)} examples.", "Lower shots, or give more data.")
    random = np.random.default_rng(options.seed)
    size = train.program.codebook_size
    codes, test_codes = train.codes(), test.codes()
    chosen = [learnt[row] for row in random.choice(len(learnt), options.shots, replace=False)]
    attributes = " or ".join(f"{name} ({', '.join(words)})" for name, words in ATTRIBUTES.items())
    think = THINK.replace("the JSON", "the answer") if options.think else ""
    lines = [PROMPT.format(size=size, last=size - 1, attributes=attributes, think=think)]
    lines += [f"{_asked(codes[each.row], each)} {each.answer}" for each in chosen]
    start = "\n\n".join(lines)
    given = []
    for number, each in enumerate(asked):
        reply = transcript.ask(f"{start}\n\n{_asked(test_codes[each.row], each)}")
        given.append(read_answer(reply))
        job.watch(f"asking {options.model}", number + 1, len(asked))
    return given


def read_answer(reply: str) -> str:
    """The first known answer in a reply, past its thoughts; empty if there is none."""
    words = re.findall(r"[a-z]+|\d+", without_thoughts(reply).lower())
    return next((word for word in words if word in ANSWERS), "")


def judge(given: Sequence[str], asked: Sequence[Asked]) -> list[bool]:
    """Which answers are right."""
    return [answer == each.answer for answer, each in zip(given, asked, strict=True)]


def accuracy_by_kind(right: Sequence[bool], asked: Sequence[Asked]) -> dict[str, Interval]:
    """Share of right answers, of all questions and of each kind."""
    marks = np.array(right, np.float64)
    kinds = np.array([each.question.kind for each in asked])
    by_kind: dict[str, Interval] = {kind: mean_interval(marks[kinds == kind]) for kind in KINDS}
    return {"all": mean_interval(marks), **by_kind}


def numbers_by_kind(
    right: Mapping[str, Sequence[bool]], asked: Sequence[Asked]
) -> dict[str, dict[str, list[float]]]:
    """Accuracies as JSON holds them."""
    return {
        name: {kind: list(interval) for kind, interval in accuracy_by_kind(each, asked).items()}
        for name, each in right.items()
    }


def accuracy_table(
    title: str, right: Mapping[str, Sequence[bool]], asked: Sequence[Asked]
) -> Table:
    """A row for each way to answer, a column for each kind of question."""
    rows = []
    for name, each in right.items():
        intervals = accuracy_by_kind(each, asked).values()
        rows.append((name, *(f"{i.value:.3f} ({i.low:.3f} to {i.high:.3f})" for i in intervals)))
    return Table(title, ("", "all", *KINDS), rows)


def draw_accuracy(right: Mapping[str, Sequence[bool]], asked: Sequence[Asked]) -> Figure:
    """Bars by kind of question, guesses in grey."""
    figure = new_figure(9.0, 3.4)
    axes = plain_axes(figure, "", "right answers")
    greys = iter(("#cccccc", MUTED))
    colours = iter(PALETTE)
    width = 0.8 / len(right)
    for number, (name, marks) in enumerate(right.items()):
        value, low, high = zip(*accuracy_by_kind(marks, asked).values(), strict=True)
        axes.bar(
            [place + (number - (len(right) - 1) / 2) * width for place in range(len(value))],
            value,
            width,
            yerr=np.clip([np.subtract(value, low), np.subtract(high, value)], 0, None),
            error_kw={"elinewidth": 0.8},
            color=next(colours if name.startswith("reader") else greys),
            label=name,
        )
    axes.set_xticks(range(len(KINDS) + 1), ["all", *KINDS])
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    return figure


def examples(answers: Mapping[str, Sequence[str]], asked: Sequence[Asked], count: int) -> str:
    """The first questions with every answer, as a page to look at."""
    header = ("question", "answer", *answers)
    rows = [
        (each.question.text, each.answer, *(given[number] for given in answers.values()))
        for number, each in enumerate(asked[:count])
    ]
    return Table("Questions and answers", header, rows).markdown() + "\n"


def _transcript(options: Options, job: Job) -> Transcript:
    endpoint = Endpoint(base_url=options.base_url, model=options.model, key_env=options.key_env)
    return Transcript(job.folder / "vqa-transcript.jsonl", endpoint)


def _asked(codes: Sequence[int], asked: Asked) -> str:
    return f"Codes: {write_codes(codes)}\nQuestion: {asked.question.text}\nAnswer:"


STUDY = Study(run=run, options=Options, needs=("scene",))
