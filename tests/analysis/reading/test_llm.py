"""Scene decoding through an endpoint: a server that knows the scenes, or almost."""

from __future__ import annotations

import json

import pytest
from chat_server import Answer, serve

from strop.data.scenes import ScenesDataset
from strop.errors import ConfigError, DataError, EndpointError
from strop.structure import chat
from strop.structure.llm import Options, run
from strop.structure.scene_tables import PAPER
from strop.structure.scene_text import write_codes, write_scene
from strop.structure.study import Encoded, Job, encode_dataset
from strop.structure.things import things_of


@pytest.fixture(scope="module")
def encoded(tokenizer) -> Encoded:
    return encode_dataset(tokenizer, ScenesDataset(7, size=64), "scenes:?n=7&size=64")


def truth(encoded: Encoded) -> dict[str, str]:
    """The text of each scene by the text of its codes."""
    return {
        write_codes(row.codes.tolist()): write_scene(things_of(scene))
        for row, scene in zip(encoded.program, encoded.records.scenes, strict=True)
    }


def query(prompt: str) -> str:
    return prompt.rpartition("Codes: ")[2].partition("\n")[0]


def options(server, **changes) -> Options:
    return Options(base_url=server.base_url, model="oracle", scenes=3, shots=4, **changes)


def test_a_model_that_knows_reads_every_scene(tokenizer, encoded, tmp_path):
    known = truth(encoded)
    thought = "<think>Let me see {.</think>"
    with serve(lambda number, prompt: Answer(thought + known[query(prompt)])) as server:
        findings = run(tokenizer, encoded, options(server, think=True), Job(tmp_path))
    scores = findings.numbers["scores"]
    assert scores["oracle"]["count_error"][0] == 0
    assert scores["oracle"]["attribute_accuracy"] == [1, 1, 1]
    assert scores["oracle"]["position_mse"][0] < 1e-4, "two decimals"
    assert scores["naive"]["attribute_accuracy"][0] < 1
    assert findings.numbers["usage"]["requests"] == 3
    assert all("<think> and </think>" in prompt for prompt in server.prompts)
    assert [query(prompt) for prompt in server.prompts] == list(known)[-3:]
    # Four examples, none of them a scene that is asked for.
    for prompt in server.prompts:
        assert prompt.count("Codes:") == 5
        assert not any(f"JSON: {known[asked]}" in prompt for asked in list(known)[-3:])


def test_one_retry_then_a_failure(tokenizer, encoded, tmp_path):
    known = truth(encoded)
    stubborn = list(known)[-1]
    seen: list[str] = []

    def answer(number: int, prompt: str) -> Answer:
        seen.append(query(prompt))
        late = seen.count(query(prompt)) > 1 and query(prompt) != stubborn
        return Answer(known[query(prompt)] if late else "a red cube, I think")

    with serve(answer) as server:
        findings = run(tokenizer, encoded, options(server), Job(tmp_path))
    assert len(server.requests) == 6
    assert findings.numbers["scores"]["oracle"]["parse_failures"] == 1
    assert findings.numbers["scores"]["oracle"]["count_error"][0] == 0


def test_an_interrupted_study_goes_on_where_it_stopped(tokenizer, encoded, tmp_path, monkeypatch):
    monkeypatch.setattr(chat.time, "sleep", lambda seconds: None)
    known = truth(encoded)
    down = True

    def answer(number: int, prompt: str) -> Answer:
        return Answer(status=400) if down and number == 1 else Answer(known[query(prompt)])

    with serve(answer) as server:
        with pytest.raises(EndpointError):
            run(tokenizer, encoded, options(server), Job(tmp_path))
        down = False
        findings = run(tokenizer, encoded, options(server), Job(tmp_path))
        assert len(server.requests) == 4, "the first answer was kept"
    assert findings.numbers["scores"]["oracle"]["attribute_accuracy"][0] == 1
    transcript = (tmp_path / "llm-transcript.jsonl").read_text().splitlines()
    assert [query(json.loads(line)["prompt"]) for line in transcript] == list(known)[-3:]


def test_the_defaults_and_the_table_are_the_papers(tokenizer, encoded, tmp_path):
    assert (Options().scenes, Options().shots, Options().think) == (15, 50, False)
    assert min(row[3] for row in PAPER) == 0.93
    assert max(PAPER, key=lambda row: row[4])[0] == "Naive baseline"
    with pytest.raises(ConfigError, match="--base-url"):
        run(tokenizer, encoded, Options(), Job(tmp_path))
    with pytest.raises(DataError, match="at least 65"):
        run(tokenizer, encoded, Options(base_url="http://a", model="b"), Job(tmp_path))
