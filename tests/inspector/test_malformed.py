"""Requests generated from the schema, and malformed requests."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from serving import image_file

import strop


def test_responses_follow_the_schema(address):
    described = schemathesis.openapi.from_url(f"{address}/api/openapi.json")
    operations = [found.ok() for found in described.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/api/encode", "/api/codes/{code}"}
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=20, suppress_health_check=list(HealthCheck), derandomize=True)
        def check(case):
            # A well-formed request can be invalid, for example hold an unknown code.
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        check()


# Malformed requests.


def png_of_size(width: int, height: int) -> bytes:
    """A PNG with any size in its header."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, content: bytes) -> bytes:
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def damaged_image(draw: random.Random, whole: list[bytes]) -> bytes:
    """An image file that was truncated, altered, joined or given another size."""
    content = bytearray(draw.choice(whole))
    for _ in range(draw.choice([1, 1, 3, 20])):
        how = draw.randrange(5)
        at = draw.randrange(len(content) + 1)
        if how == 0:
            del content[at:]
        elif how == 1 and content:
            content[at % len(content)] = draw.randrange(256)
        elif how == 2:
            content[at:at] = draw.randbytes(draw.randrange(64))
        elif how == 3:
            content += draw.choice(whole)[at:]
        else:
            sizes = [0, 1, 64, 65535, 2**31 - 1]
            content = bytearray(png_of_size(draw.choice(sizes), draw.choice(sizes)))
    return bytes(content)


ODD = [
    None, True, -1, 0, 2**31, 2**63, 10**400, 1.5, 1e400, float("nan"), "", "x", "\x00", "\ud800",
    "../../etc/passwd", "{{7*7}}", "%s%n", [], {}, [[]], [None], {"$ref": "#"}, "A" * 5000,
]  # fmt: skip


def mangled(draw: random.Random, body: object) -> object:
    """JSON with a part replaced, removed or repeated."""
    if isinstance(body, dict) and body and draw.random() < 0.8:
        body = dict(body)
        key = draw.choice(list(body))
        how = draw.randrange(4)
        if how == 0:
            del body[key]
        elif how == 1:
            body[draw.choice(["extra", "__proto__", "", key + "\n"])] = draw.choice(ODD)
        else:
            body[key] = mangled(draw, body[key])
        return body
    if isinstance(body, list) and body and draw.random() < 0.7:
        body = list(body)
        body[draw.randrange(len(body))] = draw.choice(ODD)
        return body * draw.choice([1, 1, 400])
    return draw.choice(ODD)


def malformed(
    client: httpx.Client, draw: random.Random, whole: list[bytes], program: dict
) -> httpx.Request:
    """A request with an error in it."""
    image = base64.b64encode(draw.choice(whole)).decode()
    bodies = {
        "encode": {"image": image},
        "interpret": {"program": program, "image": image},
        "curve": {"program": program, "image": image},
        "erasure": {"program": program},
        "synergy": {"program": program, "first": 0, "second": 1},
        "clusters": {"program": program, "image": image, "k": 3},
        "scene": {"objects": 3, "seed": 1},
    }
    path = draw.choice(list(bodies))
    kind = draw.randrange(6)
    headers = {"content-type": "application/json"}
    if kind == 0:  # a damaged image in a sound request
        path = draw.choice(["encode", "interpret"])
        damaged = base64.b64encode(damaged_image(draw, whole)).decode()
        content = json.dumps({**bodies[path], "image": damaged}).encode()
    elif kind == 1:  # text that is not base64
        content = json.dumps(
            {"image": draw.choice(["!", "A", "A===", "é", image[:-3], " "])}
        ).encode()
        path = "encode"
    elif kind in (2, 3):  # JSON of another shape
        content = json.dumps(mangled(draw, bodies[path])).encode()
    elif kind == 4:  # text that is not JSON
        text = json.dumps(bodies[path]).encode()
        cut = draw.randrange(len(text))
        content = draw.choice(
            [
                text[:cut],
                text[:cut] + draw.randbytes(5) + text[cut:],
                b"[" * draw.randrange(1, 20_000),
                b'{"a":' * draw.randrange(1, 5000),
                draw.randbytes(draw.randrange(200)),
                b"\xef\xbb\xbf" + text,
                text.decode().encode("utf-16"),
                b"",
            ]
        )
    else:  # another method, type, address or header
        content = json.dumps(bodies[path]).encode()
        headers["content-type"] = draw.choice(
            [
                "",
                "text/plain",
                "application/json; charset=utf-7",
                "image/png",
                "multipart/form-data",
            ]
        )
        path = draw.choice(
            [path, f"codes/{draw.choice(ODD[:9])}", "codes/..%2f..%2f", "%00", "a" * 3000]
        )
        headers[draw.choice(["x-forwarded-for", "accept", "cookie", "range"])] = "../" * 20
    method = draw.choice(["POST"] * 9 + ["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
    return client.build_request(method, f"/api/{path}", content=content, headers=headers)


SECRETS = ("Traceback", "site-packages", str(Path(strop.__file__).parents[2]), str(Path.home()))


def send_malformed(client: httpx.Client, images, numbers: range) -> None:
    whole = [image_file(images[0], kind) for kind in ("PNG", "JPEG", "WEBP")]
    program = client.post(
        "/api/encode", json={"image": base64.b64encode(whole[0]).decode()}
    ).json()["program"]
    refused = 0
    for number in numbers:
        request = malformed(client, random.Random(number), whole, program)
        answer = client.send(request)
        assert answer.status_code < 500, (number, answer.text)
        assert not any(secret in answer.text for secret in SECRETS), (number, answer.text)
        if answer.status_code >= 400:
            refused += 1
            if request.method != "HEAD":
                error = answer.json()
                assert error["problem"], number
                assert error["remedy"], number
    assert refused > 0.7 * len(numbers), "most requests should be invalid"
    assert client.get("/api/model").status_code == 200


def test_malformed_requests_are_refused(client, images):
    send_malformed(client, images, range(400))


@pytest.mark.slow
def test_ten_thousand_malformed_requests(client, images):
    send_malformed(client, images, range(10_000))
