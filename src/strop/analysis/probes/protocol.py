"""The probe protocols, with all their numbers.

`paper`   trains on features that are computed once, at the model's own size. The paper gives no
          schedule; this one is short and the same for every representation.
`strong`  as `paper`, but trained longer; rare classes have a higher weight in the loss of
          segmentation, and an interpreter without positions reads sets of tokens.
`dinov3`  DINOv3's published linear evaluation of segmentation (ADE20K) and depth (NYUv2): random
          crops at full size, features computed in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strop.errors import ConfigError, did_you_mean
from strop.model.layers import TransformerConfig


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """AdamW with a linear warm-up over `warmup` steps and a cosine decay to 0.

    batch          images per step
    weight_decays  if there are several, each is tried on four fifths of the training images, and
                   the one with the lowest loss on the other fifth is used on all of them
    clip           largest gradient norm
    """

    steps: int
    batch: int
    learning_rate: float
    weight_decays: tuple[float, ...]
    warmup: int
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float = 35.0


_READER = TransformerConfig(width=96, depth=2, heads=4, feedforward=384)


@dataclass(frozen=True, kw_only=True)
class Head:
    """Channel dropout, batch norm, a linear layer with weights from N(0, weight_std), biases 0.

    query_std         standard deviation of the learned queries that pool codes
    pooling           whether sets of tokens are pooled by attention, as in the paper; otherwise
                      they are read by an interpreter without positions
    interpreter       size of the interpreter that reads tokens in order
    interpreter_rate  factor on its learning rate: it needs a lower one than a linear layer
    """

    dropout: float = 0.0
    weight_std: float = 0.01
    query_std: float = 1.0
    pooling: bool = True
    interpreter: TransformerConfig = _READER
    interpreter_rate: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Crops:
    """Random crops to train on, sliding windows to score.

    short_side  size that images are scaled to; in training times a factor from `ratios`
    crop        side of the square
    stride      stride of the windows
    flip        probability of a horizontal flip
    """

    short_side: int
    ratios: tuple[float, float]
    crop: int
    stride: int
    flip: float


@dataclass(frozen=True, kw_only=True)
class DepthCrops:
    """Random crops of rooms to train on; whole rooms, also mirrored, to score.

    size        height and width that images are scaled to
    border      rows and columns used in training; the rest is the sensor's white frame
    crop        height and width of a crop
    brightness  range of the factor on the pixels, drawn for half of the crops
    rotation    largest rotation in degrees, for half of the crops
    scored      rows and columns that are scored: Eigen's crop
    """

    size: tuple[int, int]
    border: tuple[int, int, int, int]
    crop: tuple[int, int]
    flip: float
    brightness: tuple[float, float]
    rotation: float
    scored: tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """Cross-entropy over labelled pixels. Without crops, on cached features.

    balance  a class with a share s of the labelled pixels has a weight in proportion to s^-balance
    """

    schedule: Schedule
    head: Head
    crops: Crops | None = None
    balance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Multilabel:
    """Binary cross-entropy on pooled representations."""

    schedule: Schedule
    head: Head


@dataclass(frozen=True, kw_only=True)
class Depth:
    """Depth in metres over pixels whose depth is known.

    bins     None: one number per location, trained on the squared error. Otherwise the expectation
             over this many depths, evenly spaced from `least` to `most`, trained on SigLoss
    least, most  range that predictions are clipped to; by default up to the deepest training pixel
    floor    added to the rectified logits before they are normalised
    sig_*    SigLoss: `sqrt(var(g) + mean_weight * mean(g)²)`, g the difference of logarithms of
             depth + epsilon; without the variance in the first `sig_warmup` steps
    average  whether metrics are taken over all pixels, or per image and then averaged
    """

    schedule: Schedule
    head: Head
    bins: int | None = None
    least: float = 1e-3
    most: float | None = None
    floor: float = 0.1
    sig_mean_weight: float = 0.15
    sig_epsilon: float = 1e-3
    sig_warmup: int = 100
    average: Literal["pixels", "images"] = "pixels"
    crops: DepthCrops | None = None


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A named set of probes; None for a task that it does not have."""

    name: str
    segmentation: Segmentation
    depth: Depth
    multilabel: Multilabel | None = None


_SHORT = Schedule(
    steps=400,
    batch=32,
    learning_rate=3e-2,
    weight_decays=(1e-2, 1.0),
    warmup=20,
)

PAPER = Protocol(
    name="paper",
    segmentation=Segmentation(schedule=_SHORT, head=Head()),
    multilabel=Multilabel(schedule=_SHORT, head=Head()),
    depth=Depth(schedule=_SHORT, head=Head()),
)

_LONGER = Schedule(
    steps=500,
    batch=16,
    learning_rate=1e-2,
    weight_decays=(0.1,),
    warmup=50,
)
_UNPOOLED = Head(pooling=False)

STRONG = Protocol(
    name="strong",
    segmentation=Segmentation(schedule=_LONGER, head=_UNPOOLED, balance=0.5),
    multilabel=Multilabel(schedule=_LONGER, head=_UNPOOLED),
    depth=Depth(schedule=_LONGER, head=_UNPOOLED),
)

DINOV3 = Protocol(
    name="dinov3",
    segmentation=Segmentation(
        schedule=Schedule(
            steps=40_000,
            batch=16,
            learning_rate=1e-3,
            weight_decays=(1e-3,),
            warmup=1500,
        ),
        head=Head(dropout=0.1),
        crops=Crops(short_side=512, ratios=(0.5, 2.0), crop=512, stride=341, flip=0.5),
    ),
    depth=Depth(
        schedule=Schedule(
            steps=38_400,
            batch=16,
            learning_rate=3e-4,
            weight_decays=(1e-4,),
            warmup=12_800,
            betas=(0.9, 0.99),
        ),
        head=Head(),
        bins=256,
        most=10.0,
        average="images",
        crops=DepthCrops(
            size=(480, 640),
            border=(45, 472, 43, 608),
            crop=(416, 544),
            flip=0.5,
            brightness=(0.75, 1.25),
            rotation=2.5,
            scored=(45, 471, 41, 601),
        ),
    ),
)

PROTOCOLS = {protocol.name: protocol for protocol in (PAPER, STRONG, DINOV3)}


def find_protocol(name: str) -> Protocol:
    """The protocol with this name."""
    if name not in PROTOCOLS:
        raise ConfigError(
            f"There is no probe protocol {name!r}.",
            f"{did_you_mean(name, PROTOCOLS)}Choose one of {', '.join(PROTOCOLS)}.",
        )
    return PROTOCOLS[name]
