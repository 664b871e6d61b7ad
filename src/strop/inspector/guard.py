"""Who may ask, how much they may send, and what a browser may do with the answers."""

from __future__ import annotations

import hmac
import ipaddress
import json
from http.cookies import CookieError, SimpleCookie
from urllib.parse import SplitResult, parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strop.inspector.pictures import MAX_BYTES

MAX_BODY = MAX_BYTES * 4 // 3 + 2**20
"""An image in base64 and the rest of a request."""
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
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """ASGI middleware before everything else.

    Host    a page elsewhere can point its own name at this machine (DNS rebinding), but cannot
            send another Host than that name: only loopback is let through and, where the server
            was bound beyond it, plain addresses and the name it was bound to
    Origin  a page elsewhere can send requests (CSRF), but says where it is from
    token   where one is set: a bearer token, or a cookie that `/?token=...` leaves
    """

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self.app, self.host, self.token = app, host, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refusal, or pass the request on and seal the answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        if not self._host_allowed(headers.get("host", "")):
            await _refuse(sealed, 403, "This server does not go by that name.", _OWN_NAME)
        elif not _same_origin(headers, scope["path"]):
            await _refuse(sealed, 403, "The request comes from another site.", _OWN_NAME)
        elif self.token and (given := _asked_in(scope)) is not None and scope["path"] == "/":
            await self._let_in(sealed, given)
        elif self.token and not self._known(headers):
            await _refuse(sealed, 401, "The token is missing or wrong.", _TOKEN)
        else:
            await self._limited(scope, receive, sealed)

    def _host_allowed(self, header: str) -> bool:
        name = _split(f"//{header}").hostname or ""
        if is_loopback(name):
            return True
        if is_loopback(self.host):
            return False
        return name == self.host.lower() or _is_address(name)

    def _matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self.token or "").encode())

    def _known(self, headers: Headers) -> bool:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return False
        cookie = cookies[COOKIE].value if COOKIE in cookies else ""
        return self._matches(bearer) or self._matches(cookie)

    async def _let_in(self, send: Send, given: str) -> None:
        """Trade the token in the address for a cookie, so that it does not stay there."""
        if not self._matches(given):
            await _refuse(send, 401, "The token is missing or wrong.", _TOKEN)
            return
        cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode())]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body"})

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body up to the limit, then pass it on."""
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdecimal() or int(declared) > MAX_BODY:
            await _refuse(send, 413, "The body is too large.", f"Send at most {MAX_BODY:,} bytes.")
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY:
                await _refuse(
                    send, 413, "The body is too large.", f"Send at most {MAX_BODY:,} bytes."
                )
                return
        given = False

        async def whole() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        await self.app(scope, whole, send)


_OWN_NAME = "Open the page at the address that `strop inspect` printed."
_TOKEN = "Open the address with its token, or send it as `Authorization: Bearer`."


async def _refuse(send: Send, status: int, problem: str, remedy: str) -> None:
    body = json.dumps({"problem": problem, "remedy": remedy}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _split(address: str) -> SplitResult:
    """An address in parts, which are empty if it is none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_origin(headers: Headers, path: str) -> bool:
    """Whether no other site is behind a request; a link from elsewhere to the page itself is."""
    origin = headers.get("origin")
    if origin is not None and _split(origin).netloc != headers.get("host"):
        return False
    site = headers.get("sec-fetch-site", "none")
    return site in ("none", "same-origin") or not path.startswith("/api/")


def _asked_in(scope: Scope) -> str | None:
    """The token in the address, if any."""
    return parse_qs(scope["query_string"].decode("latin-1")).get("token", [None])[0]
