"""A client of OpenAI-compatible endpoints with retries and a transcript.

It uses the standard library only. Every request and reply is kept in a transcript. An interrupted
analysis resumes from it: requests in the transcript are not sent, and not paid for, again.
"""

from __future__ import annotations

import email.utils
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strop.errors import ConfigError, StropError
from strop.files import write_text

TRIES = 6
LONGEST_WAIT = 300.0
_BUSY = {408, 409, 425, 429, 500, 502, 503, 504, 529}


class EndpointError(StropError):
    """A language model cannot be reached, or violates its protocol."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The address and the model; `key_env` is the environment variable of the key, if any."""

    base_url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    timeout: float = 600.0

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(
                f"base_url is {self.base_url!r}.",
                "Give the address before /chat/completions, such as http://localhost:8000/v1.",
            )
        if not self.model:
            raise ConfigError("The name of the model is empty.", "Give the endpoint's name of it.")


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """Options of analyses that use a language model.

    base_url  address before /chat/completions
    model     the endpoint's name of the model
    key_env   environment variable that holds the key
    think     ask for reasoning in <think> tags first
    scenes    scenes for the language model
    shots     examples in the prompt
    """

    base_url: str = ""
    model: str = ""
    key_env: str = "OPENAI_API_KEY"
    think: bool = False
    scenes: int = field(default=15, metadata={"min": 1})
    shots: int = 50

    def __post_init__(self) -> None:
        if bool(self.base_url) != bool(self.model):
            raise ConfigError(
                "--base-url and --model name an endpoint only together.", "Give both, or none."
            )

    def transcript(self, path: Path) -> Transcript:
        """A transcript of requests to the endpoint."""
        endpoint = Endpoint(base_url=self.base_url, model=self.model, key_env=self.key_env)
        return Transcript(path, endpoint)


@dataclass(frozen=True)
class Reply:
    """The answer of a model, and its cost in tokens."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Transcript:
    """All requests and replies in order, a line of JSON each."""

    def __init__(self, path: Path, endpoint: Endpoint) -> None:
        self.path = path
        self.endpoint = endpoint
        self._known: dict[str, Reply] = {}
        self._used: list[Reply] = []
        if path.is_file():
            self._read()

    def ask(self, prompt: str, attempt: int = 0) -> str:
        """The model's answer at temperature 0. Each further attempt is a new request."""
        request = f"{self.endpoint.base_url} {self.endpoint.model} {attempt} {prompt}"
        key = hashlib.sha256(request.encode()).hexdigest()
        if key not in self._known:
            reply = complete(self.endpoint, prompt)
            self._append({"key": key, "attempt": attempt, "prompt": prompt, "reply": asdict(reply)})
            self._known[key] = reply
        self._used.append(self._known[key])
        return self._known[key].text

    def usage(self) -> dict[str, int]:
        """The number of requests and their tokens, including replies read from the file."""
        return {
            "requests": len(self._used),
            "prompt_tokens": sum(reply.prompt_tokens for reply in self._used),
            "completion_tokens": sum(reply.completion_tokens for reply in self._used),
        }

    def _append(self, entry: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        """Read a transcript; an incomplete last line is removed from the file."""
        lines = []
        for line in self.path.read_text(encoding="utf-8").splitlines(keepends=True):
            try:
                entry = json.loads(line)
                self._known[entry["key"]] = Reply(**entry["reply"])
            except (ValueError, KeyError, TypeError):
                continue
            lines.append(line if line.endswith("\n") else line + "\n")
        write_text(self.path, "".join(lines))


def complete(endpoint: Endpoint, prompt: str) -> Reply:
    """Send one request at temperature 0; wait and retry while the endpoint is busy."""
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.0,
    }
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(endpoint.key_env):
        headers["Authorization"] = f"Bearer {key}"
    url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    problem = ""
    for attempt in range(TRIES):
        wait = min(2.0**attempt, LONGEST_WAIT)
        try:
            with _OPENER.open(request, timeout=endpoint.timeout) as response:
                return _reply(json.loads(response.read()))
        except urllib.error.HTTPError as error:
            with error:
                problem = f"HTTP {error.code}: {error.read(500).decode(errors='replace').strip()}"
            if error.code not in _BUSY:
                raise EndpointError(
                    f"{url} refused: {problem}.", _remedy(endpoint, error.code)
                ) from error
            wait = _retry_after(error.headers.get("Retry-After"), wait)
        except (OSError, http.client.HTTPException) as error:  # refused, reset, cut, timed out
            problem = str(error) or type(error).__name__
        except (ValueError, KeyError, IndexError, TypeError) as error:
            problem = f"an answer that is not a chat completion ({error!r})"
        if attempt + 1 < TRIES:
            time.sleep(wait)
    raise EndpointError(
        f"{url} did not answer in {TRIES} tries; last: {problem}.",
        "Check the address and the service, then run again: the transcript resumes.",
    )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _reply(answer: Any) -> Reply:
    content = answer["choices"][0]["message"]["content"]
    if isinstance(content, list):  # some servers send parts
        content = "".join(part.get("text", "") for part in content)
    usage = answer.get("usage") or {}
    return Reply(
        content or "",
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
    )


def _retry_after(header: str | None, otherwise: float) -> float:
    """Seconds to wait, from a Retry-After header that holds a number or a date."""
    if header is None:
        return otherwise
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return otherwise
    return min(max(seconds, 0.0), LONGEST_WAIT)


def _remedy(endpoint: Endpoint, status: int) -> str:
    if status in (401, 403):
        return f"Put a valid key into the environment variable {endpoint.key_env}."
    if status == 404:
        return "Check base_url (it usually ends in /v1) and the name of the model."
    return "Check what the endpoint says about this request."
