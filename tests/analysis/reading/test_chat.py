"""The client of language models, over real HTTP against a local server."""

from __future__ import annotations

import email.utils
import json
import time

import pytest
from chat_server import Answer, serve

from strop.analysis.reading import chat
from strop.analysis.reading.chat import Endpoint, Transcript, complete
from strop.errors import ConfigError, EndpointError


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """How long the client waited, without waiting."""
    waited: list[float] = []
    monkeypatch.setattr(chat.time, "sleep", waited.append)
    return waited


def endpoint(server) -> Endpoint:
    return Endpoint(base_url=server.base_url, model="oracle")


def test_a_question_is_asked_as_the_protocol_has_it(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with serve(lambda number, prompt: Answer("42")) as server:
        reply = complete(endpoint(server), "How many?")
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("42", 100, 7)
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer secret"
    assert body == {
        "model": "oracle",
        "temperature": 0.0,
        "messages": [{"role": "user", "content": "How many?"}],
    }


def test_without_a_key_none_is_sent_and_the_variable_can_be_named(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OTHER_KEY", "other")
    with serve(lambda number, prompt: Answer("")) as server:
        complete(endpoint(server), "a")
        complete(Endpoint(base_url=server.base_url, model="m", key_env="OTHER_KEY"), "b")
    assert "Authorization" not in server.requests[0][1]
    assert server.requests[1][1]["Authorization"] == "Bearer other"


def test_a_busy_endpoint_is_given_the_time_it_asks_for(waits):
    in_a_minute = email.utils.formatdate(time.time() + 60, usegmt=True)
    answers = [
        Answer(status=429, headers={"Retry-After": "7"}),
        Answer(status=429, headers={"Retry-After": in_a_minute}),
        Answer(status=503, headers={"Retry-After": "100000"}),
        Answer(status=500),
        Answer("at last"),
    ]
    with serve(lambda number, prompt: answers[number]) as server:
        assert complete(endpoint(server), "?").text == "at last"
    assert waits == [7.0, pytest.approx(60, abs=3), chat.LONGEST_WAIT, 8.0]


def test_a_malformed_answer_is_asked_for_again(waits):
    answers = [Answer(raw=b"<html>"), Answer(raw=b'{"choices": []}'), Answer("fine")]
    with serve(lambda number, prompt: answers[number]) as server:
        assert complete(endpoint(server), "?").text == "fine"
    assert waits == [1.0, 2.0]


@pytest.mark.parametrize(
    ("message", "text"),
    [({"content": None}, ""), ({"content": [{"type": "text", "text": "a"}, {"text": "b"}]}, "ab")],
)
def test_contents_that_are_no_string(message, text):
    raw = json.dumps({"choices": [{"message": message}], "usage": None}).encode()
    with serve(lambda number, prompt: Answer(raw=raw)) as server:
        assert complete(endpoint(server), "?").text == text


def test_it_gives_up_and_says_what_happened(waits):
    with (
        serve(lambda number, prompt: Answer(status=502, raw=b"bad gateway")) as server,
        pytest.raises(EndpointError, match=r"6 tries.*bad gateway"),
    ):
        complete(endpoint(server), "?")
    assert len(server.requests) == chat.TRIES
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_nobody_there(waits):
    with serve(lambda number, prompt: Answer()) as server:
        pass
    with pytest.raises(EndpointError, match="did not answer"):
        complete(endpoint(server), "?")


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "OPENAI_API_KEY"), (404, "base_url"), (400, "says")]
)
def test_a_refusal_is_not_asked_again(waits, status, remedy):
    with (
        serve(lambda number, prompt: Answer(status=status, raw=b"no")) as server,
        pytest.raises(EndpointError, match=remedy),
    ):
        complete(endpoint(server), "?")
    assert len(server.requests) == 1
    assert not waits


def test_a_key_follows_no_redirect(waits):
    with serve(lambda number, prompt: Answer("gotcha")) as thief:
        away = Answer(status=302, headers={"Location": f"{thief.base_url}/chat/completions"})
        with (
            serve(lambda number, prompt: away) as server,
            pytest.raises(EndpointError, match="302"),
        ):
            complete(endpoint(server), "?")
    assert not thief.requests


@pytest.mark.parametrize("setting", [{"base_url": "file:///etc"}, {"base_url": ""}, {"model": ""}])
def test_a_nonsense_endpoint_is_refused(setting):
    with pytest.raises(ConfigError):
        Endpoint(**{"base_url": "http://localhost/v1", "model": "m", **setting})


def test_a_transcript_answers_what_it_holds(tmp_path):
    path = tmp_path / "deep" / "transcript.jsonl"
    with serve(lambda number, prompt: Answer(f"answer {number}")) as server:
        first = Transcript(path, endpoint(server))
        assert [first.ask("a"), first.ask("b"), first.ask("a"), first.ask("a", 1)] == [
            "answer 0",
            "answer 1",
            "answer 0",
            "answer 2",
        ]
        again = Transcript(path, endpoint(server))
        assert again.ask("b") == "answer 1"
        assert len(server.requests) == 3
        assert again.usage() == {"requests": 1, "prompt_tokens": 100, "completion_tokens": 7}
        other = Endpoint(base_url=server.base_url, model="another")
        assert Transcript(path, other).ask("b") == "answer 3", "another model is asked itself"
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["prompt"] for entry in kept] == ["a", "b", "a", "b"]


def test_a_transcript_cut_in_the_middle_of_a_line_goes_on(tmp_path):
    path = tmp_path / "transcript.jsonl"
    with serve(lambda number, prompt: Answer(f"answer {number}")) as server:
        Transcript(path, endpoint(server)).ask("a")
        Transcript(path, endpoint(server)).ask("b")
        path.write_bytes(path.read_bytes()[:-9])
        again = Transcript(path, endpoint(server))
        assert again.ask("a") == "answer 0"
        assert again.ask("b") == "answer 2"
        assert len(Transcript(path, endpoint(server))._known) == 2
