"""Uploading to a hub and loading from it, against a small hub that speaks HTTP on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlparse

import yaml

REPO = "someone/mine"
TOKEN = "hf_secret"


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that uploads and downloads use. Revisions are branch names."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    @property
    def revisions(self) -> dict[str, dict[str, bytes]]:
        return self.server.revisions  # type: ignore[attr-defined]

    @property
    def address(self) -> str:
        return f"http://{self.headers['Host']}"

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, content: object, status: int = 200, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        path, body = urlparse(self.path).path, self.body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Unauthorized"}, 401)
        elif path == "/api/repos/create":
            self.answer({"url": f"{self.address}/{REPO}", "name": json.loads(body)["name"]})
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif path.startswith(f"/api/models/{REPO}/preupload/"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif path.startswith(f"/api/models/{REPO}/commit/"):
            revision = path.rsplit("/", 1)[1]
            files = self.revisions.setdefault(revision, {})
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{self.address}/{REPO}/commit/1", "commitOid": "1" * 40})
        else:
            self.answer({"error": f"unknown {path}"}, 404)

    def do_GET(self) -> None:
        path = urlparse(self.path).path
        if path.startswith(f"/api/models/{REPO}"):
            revision = path.partition("/revision/")[2] or "main"
            files = self.revisions.get(revision)
            if files is None:
                self.answer({"error": "no such revision"}, 404, X_Error_Code="RevisionNotFound")
            elif "/tree/" in path:
                self.answer([entry(name, data) for name, data in files.items()])
            else:
                sha = hashlib.sha1(revision.encode()).hexdigest()
                siblings = [{"rfilename": name} for name in files]
                self.answer({"id": REPO, "sha": sha, "siblings": siblings})
            return
        repo, _, rest = path.strip("/").partition("/resolve/")
        sha, _, name = rest.partition("/")
        by_sha = {
            hashlib.sha1(key.encode()).hexdigest(): value for key, value in self.revisions.items()
        }
        data = by_sha.get(sha, self.revisions.get(sha, {})).get(name)
        if repo != REPO or data is None:
            self.answer({"error": "no such file"}, 404, X_Error_Code="EntryNotFound")
        else:
            self.answer(data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', X_Repo_Commit=sha)

    def do_HEAD(self) -> None:
        self.do_GET()


def entry(name: str, data: bytes) -> dict[str, object]:
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@contextmanager
def serving() -> Iterator[tuple[str, dict[str, dict[str, bytes]]]]:
    """The address of a hub, and the files of its repository by revision."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.revisions = {"main": {}}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.revisions  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(script: str, address: str, home: Path) -> str:
    """Run a script in a process that knows the hub: its address is read on import."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": address,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",
        "OMP_NUM_THREADS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", "import strop, torch\n" + script],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    return done.stdout


SENT = f"""
tok = strop.load({{folder!r}}, device="cpu")
print(tok.push_to_hub({REPO!r}, token={TOKEN!r}, commit_message="First"))
"""
FETCHED = f"""
from strop.errors import ModelError
mine = strop.load({{folder!r}}, device="cpu")
for call in (strop.load, strop.Tokenizer.from_pretrained):
    tok = call({REPO!r}, device="cpu", revision="main", cache_dir={{cache!r}})
    assert tok.identity == mine.identity
again = strop.load({REPO!r}, device="cpu", cache_dir={{cache!r}}, local_files_only=True)
assert again.identity == mine.identity
try:
    strop.load({REPO!r}, revision="nowhere", cache_dir={{cache!r}})
except ModelError as error:
    print(error)
"""


def test_a_pushed_model_loads_from_the_hub(tokenizer, tmp_path):
    folder, cache = str(tmp_path / "model"), str(tmp_path / "cache")
    tokenizer.save_pretrained(folder)
    with serving() as (address, revisions):
        url = run(SENT.format(folder=folder), address, tmp_path / "home")
        said = run(FETCHED.format(folder=folder, cache=cache), address, tmp_path / "home")
    assert "/commit/" in url
    assert revisions["main"].keys() == {path.name for path in Path(folder).iterdir()}
    assert REPO in said
    assert "could" in said
    card = revisions["main"]["README.md"].decode()
    header = yaml.safe_load(card.split("---")[1])
    assert header["library_name"] == "strop"
    assert header["pipeline_tag"] == "image-feature-extraction"
