"""Answers from programs that spell their scenes, and from an endpoint."""

from __future__ import annotations

import pytest
from chat_server import Answer, serve
from spelled import encoded_of, spell, spelled_pairs

from strop.errors import ConfigError
from strop.structure.answerer import train_answerer
from strop.structure.fitting import NetworkConfig
from strop.structure.questions import Asked, Question, ask_all
from strop.structure.reader import train_reader
from strop.structure.scene_text import write_codes
from strop.structure.things import Thing
from strop.structure.vqa import Options, accuracy_by_kind, judge, majority, read_answer, run, vote

RED = ({"color": "red"},)


def asked(*answers: str) -> list[Asked]:
    return [Asked(row, Question("count", RED), answer) for row, answer in enumerate(answers)]


def test_the_guess_is_the_most_frequent_answer_of_each_template():
    shape = Asked(0, Question("query", RED, "shape"), "cube")
    size = Asked(0, Question("query", RED, "size"), "large")
    guess = majority([*asked("1", "1", "0"), shape, size])
    assert [guess[name] for name in ("count", "query shape", "query size", "exist")] == [
        "1",
        "cube",
        "large",
        "no",
    ]


def test_readings_are_asked_and_those_that_make_sense_vote():
    cube = Thing("cube", "red", "large", "metal", 0.0, 0.0)
    ball = cube._replace(shape="sphere")
    question = Question("query", RED, "shape")
    assert vote(question, [(cube,), (ball,), (ball,), (cube, ball), ()], "cylinder") == "sphere"
    assert vote(question, [(cube, ball), ()], "cylinder") == "cylinder"


def test_accuracy_by_kind():
    questions = [*asked("1", "2", "3"), Asked(0, Question("exist", RED), "yes")]
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


def test_a_head_that_sees_the_program_knows_what_one_that_does_not_must_guess():
    pairs, test = spelled_pairs(600, most=1), spelled_pairs(100, most=1, seed=1)
    learnt, questions = (
        [each for each in ask_all(part.scenes, seed) if each.question.kind == "query"]
        for seed, part in enumerate((pairs, test))
    )
    reader = train_reader(pairs, NetworkConfig(width=48, depth=1, dropout=0.0), epochs=10)
    accuracy = {}
    for sees in (True, False):
        head = train_answerer(reader, pairs, learnt, sees=sees, epochs=16)
        right = judge(head.answer(reader, test, questions), questions)
        accuracy[sees] = sum(right) / len(right)
    assert accuracy[True] > 0.9
    assert accuracy[False] < 0.7


def test_the_study_end_to_end_with_an_endpoint(tokenizer, tmp_path):
    from strop.structure.study import Job

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
        findings = run(tokenizer, encoded_of(pairs), options, Job(tmp_path))
    told = findings.numbers["language_model"]
    assert told["oracle"]["all"][0] == 1
    assert len(server.requests) == findings.numbers["usage"]["requests"] > 4
    assert set(findings.numbers["answers"]) < set(told)
    assert findings.numbers["questions"] > 8
    assert "How many" in findings.files["vqa-examples.md"]


def test_half_an_endpoint_is_refused():
    with pytest.raises(ConfigError, match="together"):
        Options(base_url="http://localhost")
