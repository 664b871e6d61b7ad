"""The client of language models, over real HTTP against a local server."""

from __future__ import annotations

import email.utils
import json
import time

import pytest
from chat_server import Answer, serve

import chat
from chat import Endpoint, EndpointError, Transcript, complete
from strop.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """Waiting times of the client, which does not sleep."""
    waited: list[float] = []
    monkeypatch.setattr(chat.time, "sleep", waited.append)
    return waited


def endpoint(server) -> Endpoint:
    return Endpoint(base_url=server.base_url, model="oracle")


def test_requests_follow_the_protocol(monkeypatch):
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


def test_the_key_is_optional_and_its_variable_can_be_named(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OTHER_KEY", "other")
    with serve(lambda number, prompt: Answer("")) as server:
        complete(endpoint(server), "a")
        complete(Endpoint(base_url=server.base_url, model="m", key_env="OTHER_KEY"), "b")
    assert "Authorization" not in server.requests[0][1]
    assert server.requests[1][1]["Authorization"] == "Bearer other"


def test_retry_after_headers_are_respected(waits):
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


def test_a_malformed_answer_is_requested_again(waits):
    answers = [Answer(raw=b"<html>"), Answer(raw=b'{"choices": []}'), Answer("fine")]
    with serve(lambda number, prompt: answers[number]) as server:
        assert complete(endpoint(server), "?").text == "fine"
    assert waits == [1.0, 2.0]


@pytest.mark.parametrize(
    ("message", "text"),
    [({"content": None}, ""), ({"content": [{"type": "text", "text": "a"}, {"text": "b"}]}, "ab")],
)
def test_contents_that_are_not_strings(message, text):
    raw = json.dumps({"choices": [{"message": message}], "usage": None}).encode()
    with serve(lambda number, prompt: Answer(raw=raw)) as server:
        assert complete(endpoint(server), "?").text == text


def test_the_last_problem_is_reported_after_all_tries(waits):
    with (
        serve(lambda number, prompt: Answer(status=502, raw=b"bad gateway")) as server,
        pytest.raises(EndpointError, match=r"6 tries.*bad gateway"),
    ):
        complete(endpoint(server), "?")
    assert len(server.requests) == chat.TRIES
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_an_unreachable_endpoint(waits):
    with serve(lambda number, prompt: Answer()) as server:
        pass
    with pytest.raises(EndpointError, match="did not answer"):
        complete(endpoint(server), "?")


@pytest.mark.parametrize(
    ("status", "remedy"), [(401, "OPENAI_API_KEY"), (404, "base_url"), (400, "says")]
)
def test_a_refused_request_is_not_retried(waits, status, remedy):
    with (
        serve(lambda number, prompt: Answer(status=status, raw=b"no")) as server,
        pytest.raises(EndpointError, match=remedy),
    ):
        complete(endpoint(server), "?")
    assert len(server.requests) == 1
    assert not waits


def test_redirects_are_refused(waits):
    with serve(lambda number, prompt: Answer("gotcha")) as thief:
        away = Answer(status=302, headers={"Location": f"{thief.base_url}/chat/completions"})
        with (
            serve(lambda number, prompt: away) as server,
            pytest.raises(EndpointError, match="302"),
        ):
            complete(endpoint(server), "?")
    assert not thief.requests


@pytest.mark.parametrize("setting", [{"base_url": "file:///etc"}, {"base_url": ""}, {"model": ""}])
def test_an_invalid_endpoint_is_refused(setting):
    with pytest.raises(ConfigError):
        Endpoint(**{"base_url": "http://localhost/v1", "model": "m", **setting})


def test_requests_in_a_transcript_are_not_sent_again(tmp_path):
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
        assert Transcript(path, other).ask("b") == "answer 3", "another model has its own replies"
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["prompt"] for entry in kept] == ["a", "b", "a", "b"]


def test_an_incomplete_last_line_of_a_transcript_is_ignored(tmp_path):
    path = tmp_path / "transcript.jsonl"
    with serve(lambda number, prompt: Answer(f"answer {number}")) as server:
        Transcript(path, endpoint(server)).ask("a")
        Transcript(path, endpoint(server)).ask("b")
        path.write_bytes(path.read_bytes()[:-9])
        again = Transcript(path, endpoint(server))
        assert again.ask("a") == "answer 0"
        assert again.ask("b") == "answer 2"
        assert len(Transcript(path, endpoint(server))._known) == 2
