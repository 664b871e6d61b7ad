"""Digests that tell when something computed earlier is still valid.

A model has one digest for each role: what could change a code, a field, a length, a picture. A
dataset has a digest of its files. A cached result records the identities of everything it used,
and is valid only while they are unchanged.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
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


class TensorDigests:
    """Digests of tensors, computed again only for tensors that have changed.

    A change is seen by the tensor's version counter or address. Code that changes tensors behind
    autograd's back, such as a replayed CUDA graph, has to call `clear`.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[weakref.ref[Tensor], tuple[int, int], str]] = {}

    def __reduce__(self) -> tuple[type[TensorDigests], tuple[()]]:
        return (TensorDigests, ())  # a copy belongs to other tensors

    def clear(self) -> None:
        """Forget all digests."""
        self._known.clear()

    def of(self, name: str, tensor: Tensor) -> str:
        """The digest of the tensor that has this name."""
        if tensor.is_inference():  # has no version counter
            return of_tensor(tensor)
        state = (tensor.data_ptr(), tensor._version)
        reference, known, found = self._known.get(name, (None, None, ""))
        if reference is None or reference() is not tensor or known != state:
            found = of_tensor(tensor)
            self._known[name] = (weakref.ref(tensor), state, found)
        return found

    def of_module(self, name: str, module: nn.Module | None, without: Iterable[str] = ()) -> str:
        """The digest of a module's parameters and buffers, except for those in `without`."""
        if module is None:
            return ""
        parameters: list[tuple[str, Tensor]] = []
        buffers: list[tuple[str, Tensor]] = []
        _collect(module, "", parameters, buffers)
        named = parameters + buffers
        return digest(
            [(key, self.of(f"{name}.{key}", each)) for key, each in named if key not in without]
        )


def _collect(
    module: nn.Module,
    prefix: str,
    parameters: list[tuple[str, Tensor]],
    buffers: list[tuple[str, Tensor]],
) -> None:
    """Add what `named_parameters` and `named_buffers` give. These take four times as long, about
    the time in which a GPU encodes one image."""
    for kept, found in ((module._parameters, parameters), (module._buffers, buffers)):
        if kept:
            found += [(prefix + name, each) for name, each in kept.items() if each is not None]
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{prefix}{name}.", parameters, buffers)


def of_tokenizer(config: Any, model: Any, teacher: str, known: TensorDigests) -> Identity:
    """The identity of a model that has the parts of a tokenizer and a teacher of this digest."""
    look = digest(config.image_size, config.fit, config.teacher.scale)
    # The EMA state moves the codebook in training and takes no part in choosing a code.
    quantizer = known.of_module("quantizer", model.quantizer, without=("counts", "sums"))
    generator = known.of_module("generator", model.generator)
    # Weights do not fix the number of heads, nor whether tokens are centred.
    own = digest(
        look,
        config.max_length,
        config.generator.heads,
        config.quantizer.centred,
        generator,
        quantizer,
    )
    fields = digest(
        config.teacher.scale,
        config.interpreter.heads,
        known.of("quantizer.codebook", model.quantizer.codebook),
        known.of_module("interpreter", model.interpreter),
    )
    lengths = digest(
        look,
        teacher,
        config.max_length,
        to_dict(config.length_head),
        known.of_module("length_head", model.length_head),
    )
    pictures = ""
    if model.decoder is not None:
        decoder = known.of_module("decoder", model.decoder)
        pictures = digest(config.teacher.scale, config.grid, decoder)
    return Identity(
        codes=f"{own}{_SEPARATOR}{teacher}", fields=fields, lengths=lengths, pictures=pictures
    )


_LEGACY_HEADS = ((1024, 128), ())
"""Hidden widths of the length heads of 0.1.0: as trained, and as fitted afterwards."""


def legacy_fingerprints(config: Any, codebook: Tensor) -> set[str]:
    """What strop 0.1.0 may have written into programs of a model.

    Its digest included the length head, which may have been replaced since: codes stay the same.
    """
    head = config.length_head
    heads = [
        head,
        *(replace(head, kind="paper", fixed=None, hidden=each) for each in _LEGACY_HEADS),
    ]
    return {legacy_fingerprint(replace(config, length_head=each), codebook) for each in heads}


def legacy_fingerprint(config: Any, codebook: Tensor) -> str:
    """What strop 0.1.0 wrote into programs: a digest of the config and the codebook alone."""
    values = to_dict(config)
    keys = ("image_size", "fit", "max_length", "generator", "quantizer", "interpreter")
    kept = {key: values[key] for key in keys}
    if not config.quantizer.centred:
        del kept["quantizer"]["centred"]
    kept["interpreter"]["joint"] = False
    head = config.length_head
    kept["length_head"] = {"hidden": list(head.widths), "fixed": head.fixed}
    kept["teacher"] = {"name": "", **{key: values["teacher"][key] for key in ("width", "scale")}}
    kept["decoder"] = None
    content = json.dumps(kept, sort_keys=True).encode()
    return hashlib.sha256(content + codebook.detach().float().cpu().numpy().tobytes()).hexdigest()[
        :DIGITS
    ]


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
