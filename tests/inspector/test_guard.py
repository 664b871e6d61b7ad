"""Access control, limits of the body, and security headers."""

from __future__ import annotations

import re
import socket
from importlib import resources

import httpx
import pytest
from serving import served

from strop.errors import ConfigError
from strop.inspector.guard import COOKIE, MAX_BODY
from strop.inspector.server import check_token, serve

TOKEN = "0123456789abcdef0123"
PAGE = resources.files("strop.inspector") / "page"


def port(address):
    return address.rsplit(":", 1)[1]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.7", "", "[::1"])
@pytest.mark.parametrize("path", ["/", "/api/model", "/app.js", "/nothing"])
def test_other_host_names_are_refused(client, host, path):
    answer = client.get(path, headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["remedy"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9000", "[::1]:8765"])
def test_loopback_names_with_any_port_are_accepted(client, host):
    assert client.get("/api/model", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(client, headers):
    assert client.post("/api/scene", json={}, headers=headers).status_code == 403


def test_requests_of_the_page_are_accepted(client, address):
    headers = {"origin": address, "sec-fetch-site": "same-origin"}
    assert client.post("/api/scene", json={}, headers=headers).status_code == 200


def test_links_from_other_sites_open_the_page(client):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_content_types_of_forms_are_refused(client, kind):
    answer = client.post("/api/scene", content=b'{"seed": 1}', headers={"content-type": kind})
    assert answer.status_code == 422


def test_a_body_over_the_limit_is_refused(client):
    # The server stops reading shortly after the limit.
    def chunks():
        for _ in range(MAX_BODY // 2**20 + 2):
            yield bytes(2**20)

    headers = {"content-type": "application/json"}
    assert client.post("/api/encode", content=chunks(), headers=headers).status_code == 413


def test_a_body_with_a_declared_length_over_the_limit_is_not_read(address):
    with socket.create_connection(("127.0.0.1", port(address)), timeout=10) as connection:
        head = f"POST /api/encode HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_BODY + 1}"
        connection.sendall(head.encode() + b"\r\n\r\n")
        assert b" 413 " in connection.recv(4096)


@pytest.mark.parametrize("path", ["/", "/api/model", "/api/nothing", "/style.css"])
def test_every_response_has_security_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "path",
    [
        "/docs",
        "/redoc",
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/page/app.js",
    ],
)
def test_other_paths_are_not_found(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json().keys() == {"problem", "remedy"}


def test_the_page_has_no_inline_code_and_no_external_resources():
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), file.name
        assert not re.search(r"\s(style|on[a-z]+)=\"", text), file.name
        assert not re.search(r"(src|href)=\"(https?:)?//", text), file.name
        assert not re.search(r"@import|url\(", text), file.name
        addresses = set(re.findall(r"https?://[\w./]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, file.name  # a name, not a place


def test_the_page_and_the_api_page_are_served(client):
    assert "text/html" in client.get("/").headers["content-type"]
    assert "text/html" in client.get("/api.html").headers["content-type"]
    assert "text/javascript" in client.get("/app.js").headers["content-type"]


# The token.


@pytest.fixture(scope="module")
def locked(tokenizer, gallery):
    with served(tokenizer, gallery=gallery, host="0.0.0.0", token=TOKEN) as address:
        yield address


def test_without_the_token_nothing_is_served(locked):
    for path in ("/", "/app.js", "/api/model", "/api/openapi.json"):
        answer = httpx.get(locked + path)
        assert answer.status_code == 401
        assert "token" in answer.json()["problem"]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}x"},
        {"authorization": "Bearer"},
        {"cookie": f"{COOKIE}=wrong"},
        {"cookie": f"{COOKIE}="},
        {"cookie": "; ;=;\x01"},
        {"authorization": "Bearer \xff".encode("latin-1")},
    ],
)
def test_a_wrong_token_is_refused(locked, headers):
    assert httpx.get(f"{locked}/api/model", headers=headers).status_code == 401


def test_the_token_is_accepted_as_bearer_and_as_cookie(locked):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert httpx.get(f"{locked}/api/model", headers=bearer).status_code == 200
    with httpx.Client(base_url=locked) as client:
        arrived = client.get("/", params={"token": TOKEN})
        assert arrived.status_code == 303
        assert arrived.headers["location"] == "/"
        cookie = arrived.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert client.get("/api/model").status_code == 200
    assert httpx.get(f"{locked}/", params={"token": "wrong"}).status_code == 401


def test_other_hosts_accept_addresses_and_refuse_names(locked):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    for host, status in (("192.168.1.5:8765", 200), ("evil.example", 403)):
        answer = httpx.get(f"{locked}/api/model", headers={**bearer, "host": host})
        assert answer.status_code == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gpu-7.example"])
def test_other_hosts_need_a_token(host):
    with pytest.raises(ConfigError, match="everyone who can reach this machine") as caught:
        check_token(host, None)
    assert "--token" in caught.value.remedy
    check_token(host, TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.0.0.9"])
def test_on_loopback_no_token_is_needed(host):
    check_token(host, None)


@pytest.mark.parametrize(
    "token", ["", "short", "with;semicolon; and spaces", "ünïcödé-ünïcödé-ünï"]
)
def test_weak_tokens_are_refused(token):
    with pytest.raises(ConfigError, match="token"):
        check_token("127.0.0.1", token)


def test_a_used_port_is_refused(tokenizer):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot be used"):
            serve(tokenizer, name="model", port=taken.getsockname()[1])
