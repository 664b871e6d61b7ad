"""Engines: what computes the tensors of a tokenizer. The default is PyTorch without changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor

from strop.errors import ModelError
from strop.model.encoding import Encoding

if TYPE_CHECKING:
    from strop.model.tokenizer import Tokenizer

EngineName = Literal["torch", "onnx", "openvino"]
ENGINES: tuple[EngineName, ...] = ("torch", "onnx", "openvino")


class ModelEngine:
    """Computes what a tokenizer asks for, batch by batch, on the tokenizer's device.

    Engines give the same programs. They differ in speed and in the packages that they need.
    """

    def encode(self, tokenizer: Tokenizer, images: Tensor) -> Encoding:
        """uint8 images `(B, 3, H, H)` to everything that the model computes from them."""
        encoding: Encoding = tokenizer(images)
        return encoding

    def field(self, tokenizer: Tokenizer, images: Tensor) -> Tensor:
        """uint8 images `(B, 3, H, H)` to the teacher's field `(B, S, d_enc)`."""
        return tokenizer.teacher_field(images)

    def interpret(self, tokenizer: Tokenizer, codes: Tensor, active: Tensor) -> Tensor:
        """Codes and mask `(B, L)`, L at most K, to the field `(B, S, d_enc)`."""
        return tokenizer.interpret_codes(codes, active)

    def decode(self, tokenizer: Tokenizer, field: Tensor) -> Tensor:
        """The field `(B, S, d_enc)` to pixels `(B, 3, H, H)` in [0, 1]."""
        return tokenizer.decode_field(field)


def make_engine(name: str, tokenizer: Tokenizer) -> ModelEngine:
    """The engine `name` for the weights that `tokenizer` has now."""
    if name not in ENGINES:
        raise ModelError(f"There is no engine {name!r}.", f"Choose one of {', '.join(ENGINES)}.")
    if name == "torch":
        return ModelEngine()
    if tokenizer.device.type != "cpu":
        raise ModelError(
            f"The engine {name} runs on a CPU, and the model is on {tokenizer.device}.",
            'Give device="cpu" (--device cpu), or use the engine torch.',
        )
    from strop.model.onnx import OnnxEngine, OpenVinoEngine

    return (OnnxEngine if name == "onnx" else OpenVinoEngine)(tokenizer)
