"""Questions about scenes answered from codes: by a head on the reader's features, by the reader's
scenes, or by a language model; with the question alone as the control."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from answer_head import train_answer_head
from chat import EndpointOptions, Transcript
from code_transformer import TrainingOptions
from questions import ANSWERS, KINDS, Question, QuestionAnswer, ask_all
from reader_network import train_reader
from scene_objects import ATTRIBUTES, Objects
from scene_pairs import ScenePairs, training_and_test
from scene_text import THINK, without_thoughts, write_codes
from strop.analysis.findings import Findings, Table
from strop.analysis.frame import Analysis
from strop.analysis.subject import Subject
from strop.cli.study import run_script
from strop.errors import DataError
from strop.figures import MUTED, PALETTE, new_figure, plain_axes
from strop.statistics import Interval, mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Questions = Sequence[QuestionAnswer]
Accuracies = Mapping[str, Mapping[str, Interval]]
"""The share of right answers of each way to answer, by kind of question."""

PROMPT = """\
Answer a question about a CLEVR scene (3-10 objects) from integer codes produced by a visual \
tokenizer (codebook size={size}, codes in [0,{last}]).
Answer with one word or number: yes, no, 0 to 10, or a {attributes}.
The answer only. No prose.{think}"""


@dataclass(frozen=True, kw_only=True)
class Options(TrainingOptions, EndpointOptions):
    """Options of the analysis of questions; with an endpoint, also by a language model.

    rounds  passes of the answer head over the questions, of which every scene has a few
    """

    rounds: int = field(default=8, metadata={"min": 1})


def run(subject: Subject, options: Options) -> Findings:
    """Answer questions about unseen scenes in every available way."""
    train, test = training_and_test(subject, options.pairs, options.test_share)
    known = ask_all(train.scenes, options.seed)
    questions = ask_all(test.scenes, options.seed + 1)
    reader = train_reader(
        train,
        options.network,
        epochs=options.epochs,
        seed=options.seed,
        device=subject.tokenizer.device,
        progress=partial(subject.progress, "training the reader"),
    )
    frequent = most_frequent(known)
    guesses = [frequent[each.question.template] for each in questions]
    answers = {"most frequent answer of the template": guesses}
    for name, sees in {"the question alone, learnt": False, "reader's features": True}.items():
        head = train_answer_head(
            reader,
            train,
            known,
            sees=sees,
            epochs=options.rounds,
            seed=options.seed,
            progress=partial(subject.progress, f"training the answer head ({name})"),
        )
        answers[name] = head.answer(reader, test, questions)
    scenes = reader.readings(test.program)
    answers["reader's readings"] = [
        vote(each.question, scenes[each.row], guess)
        for each, guess in zip(questions, guesses, strict=True)
    ]
    right = {name: judge(given, questions) for name, given in answers.items()}
    accuracies = {name: accuracy_by_kind(marks, questions) for name, marks in right.items()}
    tables = [accuracy_table("Questions answered from programs", accuracies)]
    numbers: dict[str, object] = {"answers": accuracies}
    if options.base_url:
        few = [each for each in questions if each.row < options.scenes]
        transcript = options.transcript(subject.folder / "vqa-transcript.jsonl")
        given = ask_model(transcript, subject, options, train, known, test, few)
        marked = {options.model: judge(given, few)} | right
        compared = {
            name: accuracy_by_kind(marks[: len(few)], few) for name, marks in marked.items()
        }
        tables.append(accuracy_table(f"The first {options.scenes} scenes", compared))
        numbers["language_model"] = compared
        numbers["usage"] = transcript.usage()
    return Findings(
        numbers={
            "pairs": len(train),
            "test_scenes": len(test),
            "questions": len(questions),
            **numbers,
        },
        tables=tables,
        figures={"accuracy": draw_accuracy(accuracies)},
        files={"vqa-examples.md": examples(answers, questions, 40)},
        notes=(
            "Share of right answers, with 95 % intervals by bootstrap over questions. Every "
            "question has exactly one answer; yes and no are equally frequent. `The question "
            "alone` is the answer head without the program.",
        ),
    )


def most_frequent(known: Questions) -> Mapping[str, str]:
    """The most frequent answer of each template; "no" for unseen templates."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for each in known:
        counts[each.question.template][each.answer] += 1
    best = {template: counter.most_common(1)[0][0] for template, counter in counts.items()}
    return defaultdict(lambda: "no", best)


def vote(question: Question, scenes: Sequence[Objects], guess: str) -> str:
    """The answer that most of the scenes give; `guess` if it is valid in none of them."""
    counts = Counter(answer for scene in scenes if (answer := question.answer(scene)) is not None)
    return counts.most_common(1)[0][0] if counts else guess


def ask_model(
    transcript: Transcript,
    subject: Subject,
    options: Options,
    train: ScenePairs,
    known: Questions,
    test: ScenePairs,
    questions: Questions,
) -> list[str]:
    """A language model's answers; empty if a reply holds none of the possible answers."""
    if len(known) < options.shots:
        raise DataError(f"There are {len(known)} examples.", "Lower shots, or give more data.")
    random = np.random.default_rng(options.seed)
    size = train.program.codebook_size
    codes, test_codes = train.codes(), test.codes()
    shots = [known[row] for row in random.choice(len(known), options.shots, replace=False)]
    attributes = " or ".join(f"{name} ({', '.join(words)})" for name, words in ATTRIBUTES.items())
    think = THINK.replace("the JSON", "the answer") if options.think else ""
    lines = [PROMPT.format(size=size, last=size - 1, attributes=attributes, think=think)]
    lines += [f"{_question_text(codes[each.row], each)} {each.answer}" for each in shots]
    start = "\n\n".join(lines)
    given = []
    for number, each in enumerate(questions):
        reply = transcript.ask(f"{start}\n\n{_question_text(test_codes[each.row], each)}")
        given.append(read_answer(reply))
        subject.progress(f"asking {options.model}", number + 1, len(questions))
    return given


def read_answer(reply: str) -> str:
    """The first possible answer in a reply, after any reasoning; empty if there is none."""
    words = re.findall(r"[a-z]+|\d+", without_thoughts(reply).lower())
    return next((word for word in words if word in ANSWERS), "")


def judge(given: Sequence[str], questions: Questions) -> list[bool]:
    """Which answers are right."""
    return [answer == each.answer for answer, each in zip(given, questions, strict=True)]


def accuracy_by_kind(right: Sequence[bool], questions: Questions) -> dict[str, Interval]:
    """Share of right answers, of all questions and of each kind."""
    marks = np.array(right, np.float64)
    kinds = np.array([each.question.kind for each in questions])
    by_kind: dict[str, Interval] = {kind: mean_interval(marks[kinds == kind]) for kind in KINDS}
    return {"all": mean_interval(marks), **by_kind}


def accuracy_table(title: str, accuracies: Accuracies) -> Table:
    """A row for each way to answer, a column for each kind of question."""
    rows = [
        (name, *(f"{i.value:.3f} ({i.low:.3f} to {i.high:.3f})" for i in by_kind.values()))
        for name, by_kind in accuracies.items()
    ]
    return Table(title, ("", "all", *KINDS), rows)


def draw_accuracy(accuracies: Accuracies) -> Figure:
    """Bars by kind of question, controls in grey."""
    figure = new_figure(9.0, 3.4)
    axes = plain_axes(figure, "", "right answers")
    greys = iter(("#cccccc", MUTED))
    colours = iter(PALETTE)
    width = 0.8 / len(accuracies)
    for number, (name, by_kind) in enumerate(accuracies.items()):
        value, low, high = zip(*by_kind.values(), strict=True)
        axes.bar(
            [place + (number - (len(accuracies) - 1) / 2) * width for place in range(len(value))],
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


def examples(answers: Mapping[str, Sequence[str]], questions: Questions, count: int) -> str:
    """The first questions with all answers, as Markdown."""
    header = ("question", "answer", *answers)
    rows = [
        (each.question.text, each.answer, *(given[number] for given in answers.values()))
        for number, each in enumerate(questions[:count])
    ]
    return Table("Questions and answers", header, rows).markdown() + "\n"


def _question_text(codes: Sequence[int], each: QuestionAnswer) -> str:
    return f"Codes: {write_codes(codes)}\nQuestion: {each.question.text}\nAnswer:"


ANALYSIS = Analysis(
    name="vqa", run=run, options=Options, needs=("scene",), roles=("codes", "lengths")
)


if __name__ == "__main__":
    run_script(ANALYSIS)
