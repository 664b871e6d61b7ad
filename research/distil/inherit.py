"""Initialise a student from the layers of a larger network by least squares.

The network's residual stream is projected to the student's width along its principal directions.
Each layer of the student in turn is fitted to reproduce the projected stream after the network's
layer, with the heads and neurons that have the largest effect. Since the target is the stream
itself, each fit also corrects the errors of the layers before it. No gradient steps are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.errors import ConfigError
from strop.model.teacher import Teacher
from student import Student, Target

_RIDGE = 1e-3
"""Ridge penalty of every least-squares problem, relative to the mean of its diagonal."""

_SIZE = 8.0
"""Standard deviation of the student's initial stream. In a smaller stream, the first steps of the
patch embedding, whose inputs are similar, would dominate."""

# The parts of a layer, by their names in the model families of `transformers`.
_PARTS = {
    "query": ("q_proj", "query"),
    "key": ("k_proj", "key"),
    "value": ("v_proj", "value"),
    "join": ("o_proj", "dense"),
    "norm": ("norm2",),
    "scale": ("layer_scale2",),
    "up": ("up_proj", "fc1"),
    "down": ("down_proj", "fc2"),
    "gate": ("gate_proj", "weights_in"),
}
_NEEDED = _PARTS.keys() - {"gate"}

Batches = Sequence[Tensor]


def check_inheritance(student: Student, network: Teacher) -> None:
    """Refuse a network that the student cannot inherit from."""
    why = _unlike(student.backbone, network.backbone)
    if why:
        raise ConfigError(
            f"The student cannot inherit from the first network: {why}.",
            "Name another one first, choose another --student, or leave out --inherit.",
        )


@torch.no_grad()
def inherit(student: Student, network: Teacher, images: Batches, held_out: Tensor) -> float:
    """Set the weights of the student's backbone.

    images    batches (B, 3, H, H) from 0 to 255, all of one size, to fit on
    held_out  another batch, to measure on

    Returns the explained variance of the network's last stream, projected, on `held_out`.
    """
    check_inheritance(student, network)
    own, source = student.backbone, network.backbone
    streams = _Streams(student, network, [*images, held_out])
    for their, new in zip(_layers(source), _layers(own), strict=True):
        activations = [_run_layer(their, stream, streams) for stream in streams.theirs]
        _attend(new, activations, streams)
        _feed(new, _weights_down(their, streams.project), activations, streams)
        streams.theirs = [each.stream for each in activations]
        del activations  # free memory before the next layer
    wanted = streams.project(streams.kept(streams.theirs[-1]))
    left = (wanted - streams.kept(streams.mine[-1])).square().sum()
    return 1 - (left / (wanted - wanted.mean((0, 1))).square().sum()).item()


@torch.no_grad()
def fit_heads(
    student: Student, targets: Sequence[Target], images: Batches, fields: Iterable[Sequence[Tensor]]
) -> None:
    """Fit the student's heads to its present backbone.

    fields  for each batch of `images`, one field (B, S, d) per network
    """
    patches, pooled = [_Fit() for _ in targets], [_Fit() for _ in targets]
    for view, activations in zip(images, fields, strict=True):
        token, own = student(view)
        for number, (target, field) in enumerate(zip(targets, activations, strict=True)):
            patches[number].add(own, target.patches(field.float()))
            pooled[number].add(token, target.pooled(field.float()))
    for head, fit in zip(student.patch_heads, patches, strict=True):
        _set(head, *fit.solve())
    for head, fit in zip(student.class_heads, pooled, strict=True):
        _set(head, *fit.solve(ridge=0.1))  # one class token per image: few samples


class _Fit:
    """A least-squares linear map from x (..., i) to y (..., o), accumulated over batches."""

    def __init__(self) -> None:
        self.squares = self.products = torch.zeros(())

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add a batch."""
        x, y = x.float().flatten(0, -2), y.float().flatten(0, -2)
        x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
        self.squares = self.squares.to(x.device) + (x.T @ x).double()
        self.products = self.products.to(x.device) + (x.T @ y).double()

    def solve(self, ridge: float = _RIDGE) -> tuple[Tensor, Tensor]:
        """The weight (o, i) and the bias (o,)."""
        found = _solved(self.squares, self.products, ridge).T.float()
        return found[:, :-1].contiguous(), found[:, -1].contiguous()

    def explained(self, inputs: Tensor) -> float:
        """The sum of squares that a subset of the inputs, given by index, explains."""
        rows = torch.cat([inputs, inputs.new_tensor([len(self.squares) - 1])])
        squares, products = self.squares[rows][:, rows], self.products[rows]
        return (products * _solved(squares, products, _RIDGE)).sum().item()


def _fitted(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> _Fit:
    """The fit of batches of outputs (..., o) to batches of inputs (..., i)."""
    fit = _Fit()
    for x, y in zip(inputs, outputs, strict=True):
        fit.add(x, y)
    return fit


def _solved(squares: Tensor, products: Tensor, ridge: float) -> Tensor:
    """The coefficients (i + 1, o); the last row is the constant."""
    squares = squares.clone()
    inner = squares.diagonal()[:-1]  # without the constant
    inner += ridge * inner.mean()
    return torch.linalg.solve(squares, products)


Map = Callable[[Tensor], Tensor]


class _Streams:
    """The residual streams of both models, batch by batch; the last batch is for measuring only.

    theirs, mine  (B, tokens, width) of the network and of the student; registers may differ
    project       from the network's stream to the student's space
    at, where     position arguments of the network's and of the student's layers
    turned        whether the network has rotary positions, as the student does
    """

    def __init__(self, student: Student, network: Teacher, images: Batches) -> None:
        own, source = student.backbone, network.backbone
        pixels = [student.pixels(batch) for batch in images]
        looks = [network.preprocess(batch) for batch in images]
        self.locations = (pixels[0].shape[-1] // own.config.patch_size) ** 2
        self.theirs = [source.embeddings(look) for look in looks]  # type: ignore[operator]
        self.turned = hasattr(source, "rope_embeddings")
        self.at: dict[str, Any] = {}
        if self.turned:
            self.at["position_embeddings"] = source.rope_embeddings(looks[0])  # type: ignore[operator]
        self.where = own.rope_embeddings(pixels[0])
        self.project = _projection(source, self.theirs[0], self.at, own.config.hidden_size)
        _embed(own.embeddings, pixels, [self.project(self.kept(each)) for each in self.theirs])
        self.mine: list[Tensor] = [own.embeddings(each) for each in pixels]

    def kept(self, stream: Tensor) -> Tensor:
        """The class token and the patches (B, 1 + S, width) of either stream."""
        return torch.cat([stream[:, :1], stream[:, -self.locations :]], dim=1)


@dataclass(frozen=True)
class _Activations:
    """Activations of one layer of the network for a batch: class token and patches.

    query, key, value, heads  (B, T, d); `heads` is the output of attention before its projection
    before, middle, after     (B, T, width): the stream around attention and the MLP, projected
    hidden                    (B, T, neurons) of the MLP, before the activation
    stream                    (B, tokens, d): the input of the next layer
    """

    query: Tensor
    key: Tensor
    value: Tensor
    heads: Tensor
    before: Tensor
    middle: Tensor
    after: Tensor
    hidden: Tensor
    stream: Tensor


def _run_layer(layer: nn.Module, stream: Tensor, streams: _Streams) -> _Activations:
    """Run a layer of the network on a batch and record its activations."""
    parts, activations = _parts(layer), {}

    def note(name: str, *, before: bool) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            activations[name] = streams.kept(inputs[0] if before else output)

        return hook

    hooks = [
        parts[name].register_forward_hook(note(name, before=name in ("join", "norm")))
        for name in ("query", "key", "value", "join", "norm", "up")
    ]
    try:
        out = _out(layer, stream, streams.at)
    finally:
        for hook in hooks:
            hook.remove()
    return _Activations(
        query=activations["query"],
        key=activations["key"],
        value=activations["value"],
        heads=activations["join"],
        before=streams.project(streams.kept(stream)),
        middle=streams.project(activations["norm"]),
        after=streams.project(streams.kept(out)),
        hidden=activations["up"],
        stream=out,
    )


def _projection(source: Any, stream: Tensor, at: dict[str, Any], width: int) -> Map:
    """From the network's stream to the student's space (..., width).

    Onto the principal directions of the layers' inputs after their LayerNorms. These remove the
    mean over channels, so the basis in the student's space has mean 0 too. It is random otherwise,
    so that channels are alike: probes that normalise channels would amplify weak directions.
    LayerNorms ignore the scale of a stream, so it is chosen for the optimizer.
    """
    layers, first = _layers(source), stream
    moment = torch.zeros((), device=stream.device)
    for layer in layers:
        moment = moment + _second_moment(stream)
        stream = _out(layer, stream, at)
    moment = moment + len(layers) / 3 * _second_moment(stream)  # the last stream is the output
    directions = torch.linalg.eigh(moment).eigenvectors[:, 1 - width :].float()
    others = torch.randn(width, width - 1, generator=torch.Generator().manual_seed(0))
    basis = torch.linalg.qr(torch.cat([torch.ones(width, 1), others], dim=1)).Q[:, 1:]
    matrix = directions @ basis.T.to(directions)
    matrix = matrix * (_SIZE / ((first - first.mean(dim=-1, keepdim=True)) @ matrix).std())
    return lambda each: (each - each.mean(dim=-1, keepdim=True)) @ matrix


def _second_moment(stream: Tensor) -> Tensor:
    """Second moment (d, d) of the channels of a stream (..., d) after a LayerNorm."""
    normed = F.layer_norm(stream, stream.shape[-1:]).flatten(0, -2)
    return (normed.T @ normed).double() / len(normed)


def _embed(embeddings: Any, pixels: Batches, wanted: Batches) -> None:
    """Fit the patch embedding and the class token, without positions."""
    convolution = embeddings.patch_embeddings
    size = convolution.kernel_size
    weight, bias = _fitted(
        (F.unfold(each, size, stride=size).transpose(1, 2) for each in pixels[:-1]),
        (stream[:, 1:] for stream in wanted[:-1]),
    ).solve()
    _set(convolution, weight.view_as(convolution.weight), bias)
    embeddings.cls_token.copy_(wanted[0][:1, :1])


def _attend(new: Any, activations: Sequence[_Activations], streams: _Streams) -> None:
    """Fit the attention of a layer and advance the student's streams."""
    parts = _parts(new)
    normed = _normed(new.norm1, streams)
    mean_key = _fit_queries_keys_values(new, normed, activations, streams)
    if streams.turned:
        _shift_keys(new.norm1, parts, mean_key)
        normed = [new.norm1(stream) for stream in streams.mine]
    width = parts["join"].in_features
    _set(parts["join"], torch.eye(width), torch.zeros(width))
    joined = [new.attention(stream, position_embeddings=streams.where)[0] for stream in normed]
    _write(parts["join"], new.layer_scale1, joined, [each.middle for each in activations], streams)


def _fit_queries_keys_values(
    new: Any, normed: Batches, activations: Sequence[_Activations], streams: _Streams
) -> Tensor:
    """Fit queries, keys and values of the best heads; return the mean key.

    The student has no key bias. If the network has no rotary positions, the strongest channels are
    placed where the student's rotate least; the mean key is then a constant of the softmax.
    """
    parts, attention = _parts(new), new.attention
    count, width = attention.num_heads, attention.head_dim
    heads = _best_heads(activations[:-1], count, width)
    fitted: dict[str, tuple[Tensor, Tensor]] = {}
    identity = torch.eye(width, device=normed[0].device)
    pairs = [(identity, identity)] * count
    if not streams.turned:
        pairs = [_balanced(activations[:-1], head, width) for head in heads]
    for_queries, for_keys = zip(*pairs, strict=True)
    for name, bases in (
        ("query", for_queries),
        ("key", for_keys),
        ("value", [identity] * count),
    ):
        wanted = (_of_heads(getattr(each, name), heads, bases) for each in activations[:-1])
        fitted[name] = _fitted(map(streams.kept, normed[:-1]), wanted).solve()
        _set(parts[name], *fitted[name])
    return fitted["key"][1]


def _of_heads(x: Tensor, heads: Sequence[int], bases: Sequence[Tensor]) -> Tensor:
    """Some heads of queries, keys or values (B, T, d), each in its basis (width, width)."""
    split = x.unflatten(-1, (-1, len(bases[0])))
    return torch.cat(
        [split[..., head, :] @ basis for head, basis in zip(heads, bases, strict=True)], -1
    )


def _shift_keys(norm: Any, parts: dict[str, Any], mean_key: Tensor) -> None:
    """Produce the mean key by the LayerNorm's bias, and compensate in queries and values."""
    weight = parts["key"].weight
    squares = weight @ weight.T
    squares.diagonal().add_(_RIDGE * squares.diagonal().mean())
    shift = weight.T @ torch.linalg.solve(squares, mean_key)
    norm.bias.add_(shift)
    for name in ("query", "value"):
        parts[name].bias.sub_(parts[name].weight @ shift)


def _best_heads(activations: Sequence[_Activations], count: int, width: int) -> list[int]:
    """The heads that together explain most of the update by attention."""
    fit = _fitted(
        (each.heads for each in activations), (each.middle - each.before for each in activations)
    )
    channels = torch.arange(len(fit.squares) - 1, device=fit.squares.device).view(-1, width)
    return list(
        max(
            combinations(range(len(channels)), count),
            key=lambda some: fit.explained(channels[list(some)].flatten()),
        )
    )


def _balanced(activations: Sequence[_Activations], head: int, width: int) -> tuple[Tensor, Tensor]:
    """Bases (width, width) for a head's queries and keys that preserve their products.

    In the new basis channels are uncorrelated, and sorted: the ones with the largest effect on
    attention are where rotary positions rotate least.
    """
    channels = slice(head * width, (head + 1) * width)
    queries = torch.cat([each.query[..., channels].flatten(0, -2) for each in activations]).double()
    keys = torch.cat([each.key[..., channels].flatten(0, -2) for each in activations]).double()
    keys = keys - keys.mean(dim=0)  # a softmax ignores a constant over keys
    roots = [_powers(each.T @ each / len(each)) for each in (queries, keys)]
    left, strength, right = torch.linalg.svd(roots[0][0] @ roots[1][0])
    turning = torch.arange(width, device=left.device) % (width // 4)  # the fastest first
    slowest_first = turning.argsort(descending=True, stable=True)
    laid = torch.empty_like(slowest_first)
    laid[slowest_first] = torch.arange(width, device=left.device)
    for_queries = (roots[0][1] @ left * strength.sqrt())[:, laid]
    for_keys = (roots[1][1] @ right.T * strength.sqrt())[:, laid]
    return for_queries.float(), for_keys.float()


def _powers(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The square root of a symmetric matrix, and its inverse."""
    values, vectors = torch.linalg.eigh(matrix)
    root = values.clamp(min=1e-8 * values.max().item()).sqrt()
    return vectors * root @ vectors.T, vectors / root @ vectors.T


def _feed(new: Any, down: Tensor, activations: Sequence[_Activations], streams: _Streams) -> None:
    """Fit the MLP of a layer, with the neurons of largest effect, and advance the streams.

    down  (width, neurons): output weights of the network's neurons, projected
    """
    parts = _parts(new)
    spread = torch.stack([F.gelu(each.hidden).std(dim=(0, 1)) for each in activations[:-1]]).mean(
        dim=0
    )
    strength = spread * down.norm(dim=0)
    neurons = strength.topk(len(parts["up"].weight)).indices
    normed = _normed(new.norm2, streams)
    fit = _fitted(
        map(streams.kept, normed[:-1]), (each.hidden[..., neurons] for each in activations[:-1])
    )
    _set(parts["up"], *fit.solve())
    hidden = [F.gelu(parts["up"](stream)) for stream in normed]
    _write(parts["down"], new.layer_scale2, hidden, [each.after for each in activations], streams)


def _write(linear: Any, scale: Any, given: Batches, wanted: Batches, streams: _Streams) -> None:
    """Fit `linear` to the residual between the target and the student's streams, and add it.

    given   (B, tokens, inputs) of `linear`
    wanted  (B, 1 + S, width): the network's streams after the layer, projected
    """
    lacking = (
        goal - streams.kept(stream)
        for goal, stream in zip(wanted[:-1], streams.mine[:-1], strict=True)
    )
    fit = _fitted(map(streams.kept, given[:-1]), lacking)
    _set(linear, *_scaled(scale, *fit.solve()))
    streams.mine = [
        stream + scale(linear(each)) for stream, each in zip(streams.mine, given, strict=True)
    ]


def _normed(norm: Any, streams: _Streams) -> list[Tensor]:
    """Set a LayerNorm so that it standardises each channel; the student's streams after it.

    Weights then have their usual size. Other sizes are lost in the first steps of AdamW, which
    moves all weights equally.
    """
    activations = torch.cat([streams.kept(norm(each)) for each in streams.mine[:-1]])
    spread, mean = torch.std_mean(activations, dim=(0, 1))
    norm.weight.copy_(1 / spread)
    norm.bias.copy_(-mean / spread)
    return [norm(each) for each in streams.mine]


def _scaled(scale: Any, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weights with standard deviation 1 / sqrt(inputs); the layer scale takes the rest."""
    size = weight.std() * weight.shape[1] ** 0.5
    scale.lambda1.fill_(size)
    return weight / size, bias / size


def _weights_down(layer: nn.Module, project: Map) -> Tensor:
    """Output weights of the network's MLP neurons, projected: (width, neurons)."""
    parts = _parts(layer)
    return project((parts["scale"].lambda1[:, None] * parts["down"].weight).T).T


def _layers(backbone: nn.Module) -> list[nn.Module]:
    """The layers of a vision transformer; empty for other models."""
    for module in backbone.modules():
        if isinstance(module, nn.ModuleList) and len(module) and hasattr(module[0], "norm2"):
            return list(module)
    return []


def _parts(layer: nn.Module) -> dict[str, Any]:
    """The parts of a layer by the names in `_PARTS`, where present."""
    by_name = {name.rpartition(".")[2]: module for name, module in layer.named_modules()}
    found = {part: [by_name[n] for n in names if n in by_name] for part, names in _PARTS.items()}
    return {part: modules[0] for part, modules in found.items() if modules}


def _out(layer: nn.Module, stream: Tensor, at: dict[str, Any]) -> Tensor:
    """A stream (B, tokens, d) after a layer; some versions of the library return a tuple."""
    out = layer(stream, **at)
    result: Tensor = out[0] if isinstance(out, tuple) else out
    return result


def _set(linear: Any, weight: Tensor, bias: Tensor) -> None:
    linear.weight.copy_(weight)
    if linear.bias is not None:
        linear.bias.copy_(bias)


def _unlike(own: Any, source: Any) -> str | None:
    """Why the student cannot inherit from the network; None if it can."""
    theirs, mine = _layers(source), _layers(own)
    parts = _parts(theirs[0]) if theirs else {}
    if "gate" in parts or not parts.keys() >= _NEEDED or source.config.hidden_act != "gelu":
        return "it is not a DINOv2 or DINOv3 of transformers with a plain MLP"
    if len(theirs) != len(mine):
        return f"it has {len(theirs)} layers, and the student {len(mine)}"
    old, new = source.config, own.config
    width = new.hidden_size // new.num_attention_heads
    if old.hidden_size // old.num_attention_heads != width:
        return f"its heads are not {width} channels wide like the student's"
    if old.hidden_size < new.hidden_size:
        return f"it is {old.hidden_size} channels wide, and the student {new.hidden_size}"
    neurons = [len(_parts(layers[0])["up"].weight) for layers in (theirs, mine)]
    if neurons[0] < neurons[1]:
        return f"its MLPs have {neurons[0]} neurons, and the student's {neurons[1]}"
    return None
