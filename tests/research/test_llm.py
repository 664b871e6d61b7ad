"""Scenes read by a language model: a local server that knows the scenes."""

from __future__ import annotations

import json

import pytest
from chat_server import Answer, serve

import chat
from llm import Options, run
from scene_objects import objects_of
from scene_scores import PAPER
from scene_text import write_codes, write_scene
from strop.analysis.subject import Subject
from strop.data import ScenesDataset
from strop.errors import ConfigError, DataError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoded(tokenizer) -> Subject:
    return Subject(tokenizer=tokenizer, dataset=ScenesDataset(7, size=64), data="scenes:")


@pytest.fixture
def subject(encoded, tmp_path) -> Subject:
    encoded.folder = tmp_path
    return encoded


def truth(encoded: Subject) -> dict[str, str]:
    """The text of each scene by the text of its codes."""
    return {
        write_codes(row.codes.tolist()): write_scene(objects_of(scene))
        for row, scene in zip(encoded.program, encoded.records.scenes, strict=True)
    }


def query(prompt: str) -> str:
    return prompt.rpartition("Codes: ")[2].partition("\n")[0]


def options(server, **changes) -> Options:
    return Options(base_url=server.base_url, model="oracle", scenes=3, shots=4, **changes)


def test_a_model_that_knows_reads_every_scene(subject):
    known = truth(subject)
    thought = "<think>Let me see {.</think>"
    with serve(lambda number, prompt: Answer(thought + known[query(prompt)])) as server:
        findings = run(subject, options(server, think=True))
    scores = findings.numbers["scores"]
    assert scores["oracle"]["count_error"][0] == 0
    assert scores["oracle"]["attribute_accuracy"] == [1, 1, 1]
    assert scores["oracle"]["position_mse"][0] < 1e-4, "two decimals"
    assert scores["naive"]["attribute_accuracy"][0] < 1
    assert findings.numbers["usage"]["requests"] == 3
    assert all("<think> and </think>" in prompt for prompt in server.prompts)
    assert [query(prompt) for prompt in server.prompts] == list(known)[-3:]
    # Four examples, none of them a scene to read.
    for prompt in server.prompts:
        assert prompt.count("Codes:") == 5
        assert not any(f"JSON: {known[codes]}" in prompt for codes in list(known)[-3:])


def test_one_retry_then_a_failure(subject):
    known = truth(subject)
    stubborn = list(known)[-1]
    seen: list[str] = []

    def answer(number: int, prompt: str) -> Answer:
        seen.append(query(prompt))
        late = seen.count(query(prompt)) > 1 and query(prompt) != stubborn
        return Answer(known[query(prompt)] if late else "a red cube, I think")

    with serve(answer) as server:
        findings = run(subject, options(server))
    assert len(server.requests) == 6
    assert findings.numbers["scores"]["oracle"]["parse_failures"] == 1
    assert findings.numbers["scores"]["oracle"]["count_error"][0] == 0


def test_an_interrupted_study_continues_where_it_stopped(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(chat.time, "sleep", lambda seconds: None)
    known = truth(subject)
    down = True

    def answer(number: int, prompt: str) -> Answer:
        return Answer(status=400) if down and number == 1 else Answer(known[query(prompt)])

    with serve(answer) as server:
        with pytest.raises(chat.EndpointError):
            run(subject, options(server))
        down = False
        findings = run(subject, options(server))
        assert len(server.requests) == 4, "the first answer was kept"
    assert findings.numbers["scores"]["oracle"]["attribute_accuracy"][0] == 1
    transcript = (tmp_path / "llm-transcript.jsonl").read_text().splitlines()
    assert [query(json.loads(line)["prompt"]) for line in transcript] == list(known)[-3:]


def test_the_defaults_and_the_table_are_the_papers(subject):
    assert (Options().scenes, Options().shots, Options().think) == (15, 50, False)
    assert min(row[3] for row in PAPER) == 0.93
    assert max(PAPER, key=lambda row: row[4])[0] == "Naive baseline"
    with pytest.raises(ConfigError, match="--base-url"):
        run(subject, Options())
    with pytest.raises(DataError, match="at least 65"):
        run(subject, Options(base_url="http://a", model="b"))
