"""The probe protocols, with all their numbers.

Both train on features that are computed once, at the model's own size.

`paper`   the paper gives no schedule; this one is short and the same for every representation
`strong`  trains longer; rare classes have a higher weight in the loss of segmentation, and an
          interpreter without positions reads sets of tokens
"""

from __future__ import annotations

from dataclasses import dataclass

from strop.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """AdamW with a linear warm-up over `warmup` steps and a cosine decay to 0.

    batch          images per step
    weight_decays  if there are several, each is tried on four fifths of the training images, and
                   the one with the lowest loss on the other fifth is used on all of them
    pooling        whether sets of tokens are pooled by attention, as in the paper; otherwise
                   they are read by an interpreter without positions
    balance        in segmentation, a class with a share s of the labelled pixels has a weight in
                   proportion to s^-balance
    """

    name: str
    steps: int
    batch: int
    learning_rate: float
    weight_decays: tuple[float, ...]
    warmup: int
    pooling: bool = True
    balance: float = 0.0


PAPER = Protocol(
    name="paper",
    steps=400,
    batch=32,
    learning_rate=3e-2,
    weight_decays=(1e-2, 1.0),
    warmup=20,
)

STRONG = Protocol(
    name="strong",
    steps=500,
    batch=16,
    learning_rate=1e-2,
    weight_decays=(0.1,),
    warmup=50,
    pooling=False,
    balance=0.5,
)

PROTOCOLS = {protocol.name: protocol for protocol in (PAPER, STRONG)}


def find_protocol(name: str) -> Protocol:
    """The protocol with this name."""
    if name not in PROTOCOLS:
        raise ConfigError(
            f"There is no probe protocol {name!r}.",
            f"{did_you_mean(name, PROTOCOLS)}Choose one of {', '.join(PROTOCOLS)}.",
        )
    return PROTOCOLS[name]
