"""Digests that tell when something computed earlier is still valid.

A model has one digest for each role: what could change a code, a field, a length, a picture. A
dataset has a digest of its files. A cached result records the identities of everything it used,
and is valid only while they are unchanged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from strop.config import to_dict

DIGITS = 12
SAMPLES = 8
"""How many records represent a dataset that does not say what it reads."""

_SEPARATOR = "-"  # between the digest of a model's own weights and that of its teacher


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Digests of a model by role. Equal digests mean equal results on equal hardware.

    codes     everything that can change a code: the teacher's weights and preprocessing, the
              generator, the quantizer; `Program.model` carries it
    fields    everything that can change an interpreted field: codebook and interpreter
    lengths   everything that can change a predicted length: teacher and length head
    pictures  everything that can change a decoded picture: the decoder; empty without one
    """

    codes: str
    fields: str
    lengths: str
    pictures: str

    def wrote(self, model: str) -> bool:
        """Whether this model wrote programs that carry `model`, if its own teacher is not known:
        with any teacher."""
        return model == self.codes or (
            self.codes.endswith(_SEPARATOR) and model.startswith(self.codes)
        )

    def as_dict(self) -> dict[str, str]:
        """The digests by role, to be stored in JSON beside a result."""
        return asdict(self)


def digest(*values: Any) -> str:
    """Twelve hex digits of values that JSON can hold."""
    text = json.dumps(values, sort_keys=True, allow_nan=True)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:DIGITS]


def of_tensor(tensor: Tensor) -> str:
    """The digest of a tensor's dtype, shape and bytes, wherever it is."""
    content = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    flat = tensor.detach().cpu().contiguous().flatten()
    content.update(flat.view(torch.uint8).numpy().data)
    return content.hexdigest()


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The digest of named tensors, whatever their order: 64 hex digits."""
    parts = sorted((name, of_tensor(tensor)) for name, tensor in tensors.items())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class KnownIdentity:
    """Keeps the identity of a model until its config, its teacher or one of its tensors changes.

    A change is seen by the tensor's version counter or address. Code that changes tensors behind
    autograd's back, such as a replayed CUDA graph, has to call `clear`.
    """

    def __init__(self) -> None:
        self.clear()

    def __reduce__(self) -> tuple[type[KnownIdentity], tuple[()]]:
        return (KnownIdentity, ())  # a copy belongs to other tensors

    def clear(self) -> None:
        """Forget the identity."""
        self._state: list[Any] = []
        self._tensors: list[Tensor] = []  # kept, so that no other tensor takes their place
        self._identity: Identity | None = None

    def of(self, config: Any, model: nn.Module, teacher: str) -> Identity:
        """`of_tokenizer` of these arguments."""
        # In this way, because `parameters` and `buffers` take ten times as long: most of the time
        # that the host needs to encode one image on a GPU.
        modules: list[nn.Module] = [model]
        for each in modules:  # it grows meanwhile
            modules += [child for child in each._modules.values() if child is not None]
        parts = [part for each in modules for part in (each._parameters, each._buffers) if part]
        tensors = [x for part in parts for x in part.values() if x is not None]
        try:
            state = [config, teacher, *[(id(x), x.data_ptr(), x._version) for x in tensors]]
        except RuntimeError:  # inference tensors have no version counter
            return of_tokenizer(config, model, teacher)
        if self._identity is None or state != self._state:
            self._identity = of_tokenizer(config, model, teacher)
            self._state, self._tensors = state, tensors
        return self._identity


def of_module(module: nn.Module, without: Iterable[str] = ()) -> str:
    """The digest of a module's parameters and buffers, except for those in `without`."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return digest([(name, of_tensor(each)) for name, each in named if name not in without])


def of_tokenizer(config: Any, model: Any, teacher: str) -> Identity:
    """The identity of a model that has the parts of a tokenizer and a teacher of this digest."""
    look = digest(config.image_size, config.fit, config.teacher.scale)
    # Weights do not fix the number of heads, nor whether tokens are centred.
    own = digest(
        look,
        config.max_length,
        config.generator.heads,
        config.quantizer.centred,
        of_module(model.generator),
        # The EMA state moves the codebook in training and takes no part in choosing a code.
        of_module(model.quantizer, without=("counts", "sums")),
    )
    fields = digest(
        config.teacher.scale,
        config.interpreter.heads,
        of_tensor(model.quantizer.codebook),
        of_module(model.interpreter),
    )
    head = of_module(model.length_head)
    lengths = digest(look, teacher, config.max_length, to_dict(config.length_head), head)
    pictures = ""
    if model.decoder is not None:
        pictures = digest(config.teacher.scale, config.grid, of_module(model.decoder))
    return Identity(
        codes=f"{own}{_SEPARATOR}{teacher}", fields=fields, lengths=lengths, pictures=pictures
    )


def of_teacher(backbone: nn.Module, preprocessing: object) -> str:
    """The digest of a frozen backbone, and of how it sees images."""
    config = getattr(backbone, "config", None)
    shape = [
        getattr(config, key, None)
        for key in ("model_type", "num_attention_heads", "layer_norm_eps", "hidden_act")
    ]
    # `strop.model.vit` fuses weights and gives them as `transformers` names and orders them.
    named = getattr(backbone, "named_weights", lambda: backbone.state_dict().items())()
    # Versions of transformers differ in the outer names of model. The order is that of layers.
    # Poolers and mask tokens are no part of the field; where weights lack them they are random.
    weights = [
        (".".join(name.split(".")[-2:]), of_tensor(tensor.float()))
        for name, tensor in named
        if not name.startswith("pooler.") and "mask_token" not in name
    ]
    return digest(shape, preprocessing, weights)


def of_dataset(dataset: Any) -> str:
    """The digest of a dataset: of the files that it reads, or of the parameters that fix it.

    A dataset says which these are by `sources()`, which yields paths and other values. A path
    stands for its name, size and modification time. A dataset without `sources` is represented by
    its length and by the images of some records.
    """
    content = hashlib.sha256()
    facts = [type(dataset).__name__, len(dataset), list(dataset.classes), list(dataset.label_names)]
    content.update(json.dumps(facts).encode(errors="surrogateescape"))
    sources = getattr(dataset, "sources", None)
    for source in _samples(dataset) if sources is None else sources():
        value = _file(source) if isinstance(source, Path) else source
        content.update(repr(value).encode(errors="surrogateescape") + b"\n")
    return content.hexdigest()[:DIGITS]


def _file(path: Path) -> tuple[str, int, int]:
    """The name of a file, with its folder's, its size and when it was last changed."""
    name = "/".join(path.parts[-2:])
    try:
        found = path.stat()
    except OSError:
        return name, -1, -1
    return name, found.st_size, found.st_mtime_ns


def _samples(dataset: Any) -> Iterable[str]:
    count = len(dataset)
    for number in range(min(SAMPLES, count)):
        record = dataset[number * (count - 1) // max(1, min(SAMPLES, count) - 1)]
        yield of_tensor(record.image)
