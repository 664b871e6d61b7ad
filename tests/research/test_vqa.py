"""Answers to questions, from programs that spell their scenes and from an endpoint."""

from __future__ import annotations

import pytest
from chat_server import Answer, serve
from spelled import spell, spelled_pairs, subject_of

from answer_head import train_answer_head
from code_transformer import NetworkConfig
from questions import Question, QuestionAnswer, ask_all
from reader_network import train_reader
from scene_objects import SceneObject
from scene_text import write_codes
from strop.errors import ConfigError
from vqa import (
    Options,
    accuracy_by_kind,
    judge,
    most_frequent,
    read_answer,
    run,
    vote,
)

pytestmark = pytest.mark.slow

RED = ({"color": "red"},)


def counts(*answers: str) -> list[QuestionAnswer]:
    return [
        QuestionAnswer(row, Question("count", RED), answer) for row, answer in enumerate(answers)
    ]


def test_the_guess_is_the_most_frequent_answer_of_each_template():
    shape = QuestionAnswer(0, Question("query", RED, "shape"), "cube")
    size = QuestionAnswer(0, Question("query", RED, "size"), "large")
    guess = most_frequent([*counts("1", "1", "0"), shape, size])
    assert [guess[name] for name in ("count", "query shape", "query size", "exist")] == [
        "1",
        "cube",
        "large",
        "no",
    ]


def test_readings_in_which_a_question_is_valid_vote():
    cube = SceneObject("cube", "red", "large", "metal", 0.0, 0.0)
    ball = cube._replace(shape="sphere")
    question = Question("query", RED, "shape")
    assert vote(question, [(cube,), (ball,), (ball,), (cube, ball), ()], "cylinder") == "sphere"
    assert vote(question, [(cube, ball), ()], "cylinder") == "cylinder"


def test_accuracy_by_kind():
    questions = [*counts("1", "2", "3"), QuestionAnswer(0, Question("exist", RED), "yes")]
    right = judge(["1", "2", "0", "no"], questions)
    accuracy = accuracy_by_kind(right, questions)
    assert accuracy["all"].value == 0.5
    assert accuracy["count"].value == pytest.approx(2 / 3)
    assert accuracy["exist"].value == 0


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("yes", "yes"),
        ("The answer is: 3.", "3"),
        ("<think>yes?</think>No.", "no"),
        ("Metal", "metal"),
        ("I do not know", ""),
        ("12", ""),
    ],
)
def test_answers_in_replies(reply, answer):
    assert read_answer(reply) == answer


def test_a_head_with_the_program_is_better_than_one_without():
    pairs, test = spelled_pairs(600, most=1), spelled_pairs(100, most=1, seed=1)
    known, questions = (
        [each for each in ask_all(part.scenes, seed) if each.question.kind == "query"]
        for seed, part in enumerate((pairs, test))
    )
    reader = train_reader(pairs, NetworkConfig(width=48, depth=1, dropout=0.0), epochs=10)
    accuracy = {}
    for sees in (True, False):
        head = train_answer_head(reader, pairs, known, sees=sees, epochs=16)
        right = judge(head.answer(reader, test, questions), questions)
        accuracy[sees] = sum(right) / len(right)
    assert accuracy[True] > 0.9
    assert accuracy[False] < 0.7


def test_the_analysis_end_to_end_with_an_endpoint(tokenizer, tmp_path):
    pairs = spelled_pairs(40)
    truth = {write_codes(spell(scene)): scene for scene in pairs.scenes}
    texts = {
        each.question.text: each.question
        for seed in (0, 1)
        for each in ask_all(pairs.scenes[32:] if seed else pairs.scenes[:32], seed)
    }

    def oracle(number: int, prompt: str) -> Answer:
        query = prompt.rpartition("Codes: ")[2].splitlines()
        return Answer(texts[query[1].removeprefix("Question: ")].answer(truth[query[0]]) or "")

    with serve(oracle) as server:
        options = Options(
            epochs=2,
            rounds=1,
            width=16,
            depth=1,
            shots=5,
            scenes=4,
            base_url=server.base_url,
            model="oracle",
        )
        findings = run(subject_of(tokenizer, pairs, folder=tmp_path), options)
    compared = findings.numbers["language_model"]
    assert compared["oracle"]["all"][0] == 1
    assert len(server.requests) == findings.numbers["usage"]["requests"] > 4
    assert set(findings.numbers["answers"]) < set(compared)
    assert findings.numbers["questions"] > 8
    assert "How many" in findings.files["vqa-examples.md"]


def test_half_an_endpoint_is_refused():
    with pytest.raises(ConfigError, match="together"):
        Options(base_url="http://localhost")
