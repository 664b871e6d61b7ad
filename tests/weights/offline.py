"""Encodes, interprets and decodes a picture with the bundled models and no network.

    PYTHONPATH=... python offline.py PICTURE

Prints as JSON where strop was found, what tried to reach the network, and what came out.
"""

import json
import socket
import sys

tried = []


def refuse(*arguments, **options):
    tried.append(repr(arguments))
    raise OSError("The network is cut.")


class Cut(socket.socket):  # a class, since others inherit from it
    __init__ = refuse


socket.socket = Cut
socket.create_connection = socket.getaddrinfo = refuse

import strop  # noqa: E402  the network is cut before anything can use it

made = {}
for name in ("photos", "scenes"):
    tokenizer = strop.load(name, device="cpu")
    program = tokenizer.encode(sys.argv[1])
    field = tokenizer.interpret(program)
    made[name] = {
        "codes": program[0].codes.tolist(),
        "field": list(field.shape),
        "pixels": list(tokenizer.decode(field).shape),
    }
sys.stdout.write(json.dumps({"found": strop.__file__, "tried": tried, "made": made}))
