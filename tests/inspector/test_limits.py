"""Limits on time, connections and memory, tested on real sockets."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from serving import image_file, served

from strop.inspector import guard, server
from strop.inspector.messages import ProgramJson

HEAD = "POST /api/scene HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def connect(address):
    host, port = re.fullmatch(r"http://([\d.]+):(\d+)/?", address).groups()
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def send_part(address, sent, total):
    """A connection that has sent `sent` of `total` bytes of a body."""
    connection = connect(address)
    connection.sendall(f"{HEAD}Content-Length: {total}\r\n\r\n".encode() + b" " * sent)
    return connection


def read_all(connection):
    """What arrives until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize("sent", [b"", b"G", b"POST /api/scene HTTP/1.1\r\nHost: local"])
def test_an_incomplete_head_is_dropped(address, monkeypatch, sent):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    with connect(address) as connection:
        connection.sendall(sent)
        assert read_all(connection) == b""


def test_a_head_that_trickles_in_gets_no_more_time(address, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    start = time.monotonic()
    with connect(address) as connection, suppress(OSError):
        while time.monotonic() - start < 10:
            connection.sendall(b"G")
            time.sleep(0.05)
    assert time.monotonic() - start < 5


def test_the_second_request_of_a_connection_has_the_same_limit(address, monkeypatch):
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    with connect(address) as connection:
        connection.sendall(b"GET /theme.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        time.sleep(0.5)  # an idle connection may stay open
        connection.sendall(b"GET /theme.js HTTP/1.1\r\nHost: ")
        assert b"HTTP/1.1" not in read_all(connection)


def test_an_incomplete_body_is_refused_in_time(address, client, monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.3)
    with send_part(address, 10, 20) as connection:
        answer = read_all(connection)
    assert b" 408 " in answer
    assert b"problem" in answer
    assert client.post("/api/scene", json={}).status_code == 200


def test_bodies_share_a_bound_on_bytes(tokenizer, gallery, monkeypatch):
    monkeypatch.setattr(guard, "MAX_IN_FLIGHT", 3000)
    with served(tokenizer, gallery=gallery) as address:
        with send_part(address, 2000, 2500) as first:
            time.sleep(0.2)
            with send_part(address, 1500, 2500) as second:
                assert b" 503 " in read_all(second)
            first.sendall(b" " * 498 + b"{}")
            assert b" 200 " in first.recv(65536)
        for _ in range(3):  # what was received is released, after refusals too
            with send_part(address, 2000, 2000) as connection:
                assert b" 400 " in connection.recv(65536)


def test_a_client_that_leaves_releases_its_bytes(tokenizer, gallery, monkeypatch):
    monkeypatch.setattr(guard, "MAX_IN_FLIGHT", 3000)
    with served(tokenizer, gallery=gallery) as address:
        for _ in range(4):
            send_part(address, 2000, 2500).close()
            time.sleep(0.1)
        with send_part(address, 2000, 2000) as connection:
            assert b" 400 " in connection.recv(65536)


def test_connections_are_bounded(tokenizer, gallery, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with served(tokenizer, gallery=gallery) as address, ExitStack() as stack:
        open_connections = [stack.enter_context(connect(address)) for _ in range(3)]
        time.sleep(0.2)
        with connect(address) as refused:
            assert read_all(refused).startswith(b"HTTP/1.1 503")
        open_connections[0].close()
        time.sleep(0.2)
        assert httpx.get(f"{address}/theme.js").status_code == 200


def test_a_file_name_that_is_not_utf8_is_shown_with_replacements(tokenizer, images, tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff\xfe.png"
    try:
        with open(name, "wb") as file:  # noqa: PTH123 (a path of bytes)
            file.write(image_file(images[0]))
    except OSError:
        pytest.skip("this file system holds UTF-8 names only")
    code = int(tokenizer.encode(images[0]).codes[0, 0])
    with served(tokenizer, gallery=tmp_path) as address:
        for _ in range(100):
            answer = httpx.get(f"{address}/api/codes/{code}")
            assert answer.status_code == 200
            if answer.json()["encoded"]:
                break
            time.sleep(0.05)
    assert answer.json()["appearances"][0]["name"] == "\ufffd\ufffd.png"


# Signals.


@contextmanager
def process(*command):
    # A child inherits ignored signals, and a shell ignores SIGINT in its background jobs.
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as running:
        try:
            yield running, re.search(r"http://\S+", running.stdout.readline()).group()
        finally:
            running.kill()


def seconds_to_end(running, number):
    start = time.monotonic()
    running.send_signal(number)
    running.wait(timeout=20)
    return time.monotonic() - start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_whatever_is_open(tokenizer, images, tmp_path, number):
    tokenizer.save_pretrained(tmp_path / "model")
    program = ProgramJson.of(tokenizer.encode(images[0])).model_dump()
    command = ["-m", "strop", "inspect", str(tmp_path / "model"), "--port", "0", "--no-browser"]
    with process(*command, "--device", "cpu") as (running, address), ExitStack() as stack:
        facts = httpx.get(f"{address}api/model").json()
        assert facts["name"] == "model", "the path of the folder is not shown"
        assert facts["fingerprint"] == tokenizer.identity.codes
        idle, head = (stack.enter_context(connect(address)) for _ in range(2))
        head.sendall(HEAD.encode())
        stack.enter_context(send_part(address, 1000, 10_000_000))
        body = httpx.Request("POST", address, json={"program": program}).content
        for _ in range(20):  # computing, while the gallery is encoded
            busy = stack.enter_context(connect(address))
            start = HEAD.replace("scene", "erasure")
            busy.sendall(f"{start}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        idle.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(65536)
        assert seconds_to_end(running, number) < 5
        assert "Traceback" not in running.stderr.read()
        assert running.returncode in (-number, 128 + number)


def test_a_watchdog_ends_the_process_if_shutting_down_takes_long(monkeypatch):
    codes = []
    monkeypatch.setattr(server, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(server.os, "_exit", codes.append)
    stuck, fast = (server.Server(app=None) for _ in range(2))
    stuck.handle_exit(signal.SIGTERM, None)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    fast.handle_exit(signal.SIGTERM, None)
    fast.run([])
    time.sleep(0.4)
    assert stuck.should_exit
    assert codes == [143], "the server that ended in time is not killed"


@pytest.mark.slow
def test_a_thread_that_hangs_does_not_keep_the_process(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text(
        """
import socket, time
import anyio
from strop.inspector.server import Server

async def app(scope, receive, send):
    assert scope["type"] == "http"
    await anyio.to_thread.run_sync(time.sleep, 60)

bound = socket.socket()
bound.bind(("127.0.0.1", 0))
print(f"http://127.0.0.1:{bound.getsockname()[1]}/", flush=True)
Server(app, log_level="critical").run([bound])
"""
    )
    with process(str(script)) as (running, address), connect(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(1)
        assert seconds_to_end(running, signal.SIGTERM) < 5
