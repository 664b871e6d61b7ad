"""Access control: which requests are served, how large they may be, and security headers."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
from http.cookies import CookieError, SimpleCookie
from urllib.parse import SplitResult, parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strop.inspector.image_io import MAX_BYTES

MAX_BODY = MAX_BYTES * 4 // 3 + 2**20
"""Bytes of a request body: an image in base64, and the rest of the request."""
MAX_IN_FLIGHT = 4 * MAX_BODY
"""Bytes of all request bodies that are being received or processed."""
BODY_SECONDS = 60.0
"""A request body must arrive within this time."""
COOKIE = "strop-token"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether `host` is reachable from this machine only."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that `host` is, or None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


class Guard:
    """ASGI middleware in front of the application.

    Host    a foreign page can point its own name at this machine (DNS rebinding), but then the
            Host header holds that name. Only loopback names are accepted and, if the server is
            bound to another address, IP addresses and the name it is bound to
    Origin  a foreign page can send requests (CSRF), but the browser names their origin
    token   if one is set: a bearer token, or the cookie that `/?token=...` sets
    body    limited in size, in time, and in the bytes of all requests together
    """

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self.app, self.host, self.token = app, host, token
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it on; add security headers to the response."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if not self._host_allowed(headers.get("host", "")):
            refusal = (403, "The Host header names another server.", _OWN_ADDRESS)
        elif not _same_origin(headers, scope["path"]):
            refusal = (403, "The request comes from another site.", _OWN_ADDRESS)
        elif self.token and scope["path"] == "/" and "token" in query:
            if self._matches(query["token"][0]):
                await self._set_cookie(send_sealed)
                return
            refusal = (401, "The token is missing or wrong.", _TOKEN)
        elif self.token and not self._authorised(headers):
            refusal = (401, "The token is missing or wrong.", _TOKEN)
        else:
            await self._serve(scope, receive, send_sealed)
            return
        await _refuse(send_sealed, *refusal)

    def _host_allowed(self, header: str) -> bool:
        name = _split(f"//{header}").hostname or ""
        if is_loopback(name):
            return True
        if is_loopback(self.host):
            return False
        return name == self.host.lower() or _address(name) is not None

    def _matches(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), (self.token or "").encode())

    def _authorised(self, headers: Headers) -> bool:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return False
        cookie = cookies[COOKIE].value if COOKIE in cookies else ""
        return self._matches(bearer) or self._matches(cookie)

    async def _set_cookie(self, send: Send) -> None:
        """Move the token from the address to a cookie, so that it is not shown or shared."""
        cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body within its limits, then call the application."""
        body = bytearray()
        length = Headers(scope=scope).get("content-length", "0")
        try:
            if not length.isdecimal() or len(length) > 20 or int(length) > MAX_BODY:
                await _refuse(send, *_TOO_LARGE)
            elif await self._read(body, receive, send):
                await self.app(scope, _replay(bytes(body), receive), send)
        finally:
            self._in_flight -= len(body)

    async def _read(self, body: bytearray, receive: Receive, send: Send) -> bool:
        """Read a request body to its end, or refuse it. `body` is what was read either way."""
        refusal = None
        try:
            async with asyncio.timeout(BODY_SECONDS):
                more = True
                while more and refusal is None:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    part, more = message.get("body", b""), message.get("more_body", False)
                    body += part
                    self._in_flight += len(part)
                    if len(body) > MAX_BODY:
                        refusal = _TOO_LARGE
                    elif self._in_flight > MAX_IN_FLIGHT:
                        refusal = _BUSY
        except TimeoutError:
            refusal = _TOO_SLOW
        if refusal is not None:
            await _refuse(send, *refusal)
        return refusal is None


_OWN_ADDRESS = "Open the page at the address that `strop inspect` printed."
_TOKEN = "Open the address with its token, or send it as `Authorization: Bearer`."
_TOO_LARGE = (413, "The body is too large.", f"Send at most {MAX_BODY:,} bytes.")
_TOO_SLOW = (408, "The body did not arrive in time.", "Send it again.")
_BUSY = (503, "The server is receiving too much at once.", "Try again in a few seconds.")


async def _refuse(send: Send, status: int, problem: str, remedy: str) -> None:
    """Send an error and close the connection, so that the rest of the body is not received."""
    body = json.dumps({"problem": problem, "remedy": remedy}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body first."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _split(address: str) -> SplitResult:
    """The parts of an address; empty parts for an invalid one."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _same_origin(headers: Headers, path: str) -> bool:
    """Whether a request comes from the page itself. Links from other sites to the page may too."""
    origin = headers.get("origin")
    if origin is not None and _split(origin).netloc != headers.get("host"):
        return False
    site = headers.get("sec-fetch-site", "none")
    return site in ("none", "same-origin") or not path.startswith("/api/")
