"""The tokenizer: images to programs, programs to fields, fields to pixels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self, TypeVar, get_args

import torch
from torch import Tensor, nn

from strop.config import in_range
from strop.device import check_device, exact_products
from strop.errors import (
    ConfigError,
    ImageError,
    ModelError,
    ProgramError,
    TeacherError,
    expect,
    parsing,
)
from strop.files import PathLike
from strop.identity import Identity, KnownIdentity
from strop.legacy import fingerprints
from strop.model.decoder import Decoder
from strop.model.encoding import Encoding, check_finite
from strop.model.generator import Generator
from strop.model.inputs import Images, listed, names_of, square_batches
from strop.model.interpreter import Interpreter
from strop.model.length_head import (
    CONFIDENCE,
    FixedLength,
    LengthHead,
    RateCurve,
    RateHead,
    check_confidence,
    whole_lengths,
)
from strop.model.length_rule import (
    LengthRule,
    expected_quality,
    measured_lengths,
    needs_rate_head,
    predicted_lengths,
)
from strop.model.model_engine import ModelEngine
from strop.model.quantizer import Quantizer
from strop.model.teacher import Teacher, check_pixels, load_teacher
from strop.model.tokenizer_config import TokenizerConfig
from strop.program import Program

__all__ = ["Encoding", "Precision", "Tokenizer", "TokenizerConfig"]

Precision = Literal["fp32", "fp16", "bf16"]

Result = TypeVar("Result")

LENGTH_HEADS: dict[str, type[LengthHead | RateHead | FixedLength]] = {
    "paper": LengthHead,
    "rate": RateHead,
    "fixed": FixedLength,
}


class Tokenizer(nn.Module):
    """Teacher, generator, quantizer, length head, interpreter and an optional decoder.

    Internally, fields are multiplied by `config.teacher.scale`. Inputs and outputs are in the
    teacher's own scale. The teacher is loaded when first needed, so that programs can be
    interpreted without it, and is no part of the parameters or the state dict.

    `about` states where the model comes from (data, steps, metrics); it is saved with the weights.
    With a `teacher_digest` only a teacher of this digest is accepted; training on cached fields
    never loads it.
    """

    def __init__(
        self,
        config: TokenizerConfig,
        *,
        teacher: Teacher | None = None,
        about: dict[str, Any] | None = None,
        teacher_digest: str = "",
    ) -> None:
        super().__init__()
        remedy = "Load a model that exists with `strop.load`."
        expect(config, TokenizerConfig, "the config of a model", ConfigError, remedy)
        self.config = config
        self.about = about or {}
        self._precision: Precision | None = None
        self.engine = ModelEngine()
        self._teacher_digest = teacher_digest
        self._known = KnownIdentity()
        shape = {"locations": config.grid**2, "length": config.max_length}
        width = config.teacher.width
        self.generator = Generator(config.generator, field_width=width, **shape)
        self.quantizer = Quantizer(
            config.quantizer, width=config.generator.width, length=config.max_length
        )
        self.length_head = LENGTH_HEADS[config.length_head.kind](
            config.length_head, field_width=width, length=config.max_length
        )
        self.interpreter = Interpreter(
            config.interpreter, code_width=config.quantizer.code_width, field_width=width, **shape
        )
        self.decoder = Decoder(config.decoder, field_width=width) if config.decoder else None
        # Not a submodule: see the docstring.
        self.__dict__.update(_teacher=None, _teacher_has_name=False)
        if teacher is not None:
            self._adopt(teacher)

    @property
    def precision(self) -> Precision | None:
        """The precision of products: "fp32", "fp16", "bf16", or None for the device's default."""
        return self._precision

    @precision.setter
    def precision(self, precision: torch.dtype | str | None) -> None:
        self._precision = precision_of(precision)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.quantizer.codebook.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights. Products are computed in `product_dtype`."""
        return self.quantizer.codebook.dtype

    def __repr__(self) -> str:
        config, precision = self.config, precision_of(self.product_dtype)
        return (
            f"Tokenizer({str(self.about.get('name', ''))!r}, K={config.max_length}, "
            f"codes={config.quantizer.codes}, teacher={config.teacher.name!r}, "
            f"device={str(self.device)!r}, precision={precision!r})"
        )

    @property
    def teacher(self) -> Teacher:
        """The frozen teacher, loaded at first use."""
        if self.__dict__["_teacher"] is None:
            self._adopt(load_teacher(self.config.teacher.name))
            self.__dict__["_teacher_has_name"] = True
        return self.__dict__["_teacher"]

    @property
    def trainable_parameters(self) -> int:
        """Parameters of generator, quantizer, length head and interpreter, as the paper counts."""
        sizes = {name: part.numel() for name, part in self.named_parameters()}
        return sum(size for name, size in sizes.items() if not name.startswith("decoder."))

    @property
    def teacher_digest(self) -> str:
        """The digest of the teacher; empty if only loading the teacher would tell it."""
        teacher = self.__dict__["_teacher"]
        return self._teacher_digest or ("" if teacher is None else teacher.digest)

    @property
    def identity(self) -> Identity:
        """Digests of everything that determines codes, fields, lengths and pictures."""
        return self._known.of(self.config, self, self.teacher_digest or self.teacher.digest)

    # The three verbs.

    @torch.no_grad()
    def encode(
        self,
        images: Images,
        *,
        length: int | Tensor | Literal["max", "search"] | None = None,
        quality: float | None = None,
        confidence: float | None = None,
        verify: bool = False,
        mean_length: float | None = None,
        tolerance: float | None = None,
        batch: int = 32,
    ) -> Program:
        """Images to their programs.

        images       a path, folder, open file, bytes, PIL image, array `(H, W, 3)` or tensor
                     `(3, H, W)`; a batch `(B, H, W, 3)` or `(B, 3, H, W)`, uint8 or float in
                     [0, 1]; or any iterable of these, such as a list, a generator, a
                     `DataLoader`, or a dataset of `datasets` or its image column
        length       force one length, or one per image, or "max" for all K; or "search" for the
                     shortest with a cosine error within `tolerance` of the best, which
                     interprets K prefixes per image
        quality      the shortest length that is expected to reach this cosine similarity to the
                     teacher's field; by default the one in the model's config
        confidence   share of images that reach the quality; 0.9 by default
        verify       interpret a few prefixes of each program and choose the shortest that reaches
                     the quality, given or by default, or K if none does
        mean_length  mean length over all images. A rate head distributes the tokens so that the
                     expected error is least; without one, predicted lengths are shifted
        tolerance    of a search; 0.01 by default
        batch        how many images are on the device at a time

        `quality`, `confidence` and `verify` need a model with a rate head. All
        qualities give the same codes for an image, and a lower quality never a longer program.
        `Program.quality` is the measured similarity (verified or searched), or the expected one
        (with a rate head), or None. A warning counts programs that do not reach a given quality.

        On a CPU in fp32, images are encoded one by one, so that results do not depend on batch
        composition.
        """
        rule = LengthRule(
            length=length,
            quality=quality,
            confidence=confidence,
            verify=verify,
            mean_length=mean_length,
            tolerance=tolerance,
        )
        images = listed(images)
        names = names_of(images)
        program = self.encode_batches(self._batches(images, batch), rule, batch=batch)
        if (quality is not None or verify) and (missed := sum(rule.missed(program, self.config))):
            warnings.warn(f"{rule.shortfall(missed, len(program), self.config)}.", stacklevel=3)
        return replace(program, names=names, check=False)

    @torch.no_grad()
    def encode_batches(
        self, batches: Iterable[Tensor], rule: LengthRule, *, batch: int = 32
    ) -> Program:
        """Like `encode`, from uint8 batches `(b, 3, H, H)`.

        `batch` is how many programs are interpreted at a time where that is needed.
        """
        rule.check(self.config)  # before any image is read
        interpret = partial(self._compute, self.engine.interpret)
        codes, log_errors, measured = [], [], []
        predicted: list[Tensor] = []
        quality: Tensor | None
        for images in batches:
            images = images.to(self.device)
            for part in images.split(1) if self.device.type == "cpu" else [images]:
                encoding = self._compute(self.engine.encode, part)
                if predicted:  # of the batch before: a GPU computes this one meanwhile
                    check_finite(predicted[-1])
                codes.append(encoding.codes)
                predicted.append(encoding.predicted)
                if encoding.log_error is not None:
                    log_errors.append(encoding.log_error)
                if rule.searches or rule.verify:
                    check_finite(encoding.predicted)
                    measured.append(
                        measured_lengths(rule, self.length_head, encoding, interpret, batch)
                    )
        if not codes:
            raise ImageError("There are no images to encode.", "Give at least one.")
        if rule.mean_length is not None:  # which does not exist for predictions that are not finite
            check_finite(predicted[-1])
        log_error = torch.cat(log_errors) if log_errors else None
        if measured:
            lengths, quality = (torch.cat(part) for part in zip(*measured, strict=True))
        else:
            lengths = predicted_lengths(
                rule, self.length_head, torch.cat(predicted), log_error, self.config.max_length
            )
            quality = expected_quality(self.length_head, log_error, lengths, rule.confidence)
        model = self.identity.codes  # a GPU computes the last batch meanwhile
        check_finite(predicted[-1])
        return Program(
            codes=torch.cat(codes),
            lengths=lengths,
            codebook_size=self.config.quantizer.codes,
            model=model,
            quality=quality,
            check=False,
        )

    @torch.no_grad()
    def rate_curve(
        self,
        images: Images,
        *,
        confidence: float = 0.5,
        batch: int = 32,
    ) -> RateCurve:
        """What programs of images are expected to reach at every length, without interpreting any.

        By default the cosine similarities are medians; with another `confidence`, what that share
        of images reaches. It needs a model with a rate head.
        """
        check_confidence(confidence)
        head = self.length_head
        if not isinstance(head, RateHead):
            raise needs_rate_head("a rate curve")
        log_error = self.analyse(images, batch=batch).log_error
        assert log_error is not None
        return RateCurve(
            cosine=head.expected(log_error[:, 0], confidence),
            squared_error=log_error[:, 1].exp() / self.config.teacher.scale**2,
        )

    @torch.no_grad()
    def interpret(self, program: Program, *, batch: int = 256) -> Tensor:
        """Interpret programs as fields `(B, S, d_enc)`, in the teacher's scale."""
        batch = in_range(batch, "batch", 1)
        program, active = self._readable(program)
        codes = program.codes[:, : active.shape[1]]
        parts = [
            self._compute(self.engine.interpret, codes[i : i + batch], active[i : i + batch])
            for i in range(0, len(codes), batch)
        ]
        return torch.cat(parts)

    @torch.no_grad()
    def embed(self, program: Program) -> tuple[Tensor, Tensor]:
        """Tokens for another model: embeddings `(B, L, d)` float32 and a mask `(B, L)` bool.

        They are what the interpreter attends to: projected code vectors plus prefix positions. L
        is the longest length; the mask is True at active tokens.
        """
        program, active = self._readable(program)
        with self._autocast():
            vectors = self.quantizer.vectors(program.codes[:, : active.shape[1]])
            return self.interpreter.embed_program(vectors).float(), active

    @torch.no_grad()
    def decode(self, field: Tensor | Program, *, batch: int = 64) -> Tensor:
        """Decode fields `(B, S, d_enc)` to pixels for inspection: `(B, 3, H, H)` in [0, 1].

        A program is interpreted first.
        """
        if self.decoder is None:
            raise ModelError(
                "This model has no pixel decoder.", "Train one with `strop train-decoder MODEL`."
            )
        if isinstance(field, Program):
            field = self.interpret(field, batch=batch)
        self._check_field(field)
        parts = field.to(self.device, torch.float32).split(in_range(batch, "batch", 1))
        return torch.cat([self._compute(self.engine.decode, part) for part in parts])

    @torch.no_grad()
    def field(self, images: Images, *, batch: int = 32) -> Tensor:
        """The teacher's field of images, `(B, S, d_enc)`: what `interpret` tries to reproduce."""
        batches = self._batches(images, batch)
        return torch.cat([self._compute(self.engine.field, part) for part in batches])

    @torch.no_grad()
    def analyse(self, images: Images, *, batch: int = 32) -> Encoding:
        """Encode images and return all intermediate results; see `encode` for accepted images.

        All parts stay on the model's device: for a large dataset, call it batch by batch.
        """
        batches = self._batches(images, batch)
        return Encoding.joined([self._compute(self.engine.encode, part) for part in batches])

    @torch.no_grad()
    def analyse_field(self, field: Tensor, *, batch: int = 64) -> Encoding:
        """Like `analyse`, from fields `(B, S, d_enc)` in the teacher's scale."""
        self._check_field(field)
        scale = self.config.teacher.scale
        parts = field.split(in_range(batch, "batch", 1))
        return Encoding.joined([self._analyse(p.to(self.device).float() * scale) for p in parts])

    @torch.no_grad()
    def to_program(self, encoding: Encoding) -> Program:
        """The program of an encoding at its predicted lengths."""
        return Program(
            codes=encoding.codes,
            lengths=encoding.lengths,
            codebook_size=self.config.quantizer.codes,
            model=self.identity.codes,
            quality=expected_quality(self.length_head, encoding.log_error, encoding.lengths),
        )

    def forward(self, pixel_values: Tensor) -> Encoding:
        """uint8 images `(B, 3, H, H)` to everything the model computes from them.

        The part of `encode` and `analyse` that is pure tensors: `model.compile()` compiles it.
        Where a field is not finite, `predicted` is NaN: a length head can turn infinity into an
        ordinary number.
        """
        check_pixels(pixel_values, self.config.image_size)
        return self._analyse(self._scaled_field(pixel_values))

    def _analyse(self, scaled: Tensor) -> Encoding:
        with self._autocast():
            raw = self.generator(scaled)
            quantized = self.quantizer(raw)
            predicted = self.length_head(scaled)
        head, log_error = self.length_head, None
        if isinstance(head, RateHead):
            log_error = predicted
            predicted = head.shortest(log_error, head.quality, CONFIDENCE).float()
        finite = scaled.isfinite().flatten(1).all(dim=1)
        return Encoding(
            field=scaled / self.config.teacher.scale,
            raw=raw,
            z=quantized.z,
            codes=quantized.codes,
            z_q=quantized.z_q,
            predicted=predicted.masked_fill(~finite, torch.nan),
            lengths=whole_lengths(predicted, self.config.max_length),
            log_error=log_error,
        )

    def teacher_field(self, images: Tensor) -> Tensor:
        """uint8 images `(B, 3, H, W)` to the field `(B, S, d_enc)`: the tensors of `field`.

        They keep their size, which determines S.
        """
        return self._scaled_field(images) / self.config.teacher.scale

    def interpret_codes(self, codes: Tensor, active: Tensor) -> Tensor:
        """Codes and mask `(B, L)` to the field `(B, S, d_enc)`: the tensors of `interpret`."""
        with self._autocast():
            field = self.interpreter(self.quantizer.vectors(codes), active).float()
        return field / self.config.teacher.scale

    def decode_field(self, field: Tensor) -> Tensor:
        """The field `(B, S, d_enc)` to pixels `(B, 3, H, H)`: the tensors of `decode`."""
        assert self.decoder is not None
        was_training = self.decoder.training
        self.decoder.eval()
        try:
            pixels: Tensor = self.decoder(field * self.config.teacher.scale)
            return pixels.float()
        finally:
            self.decoder.train(was_training)

    def compile(self, *args: Any, batch: int = 32, **options: Any) -> None:
        """Prepare for many calls with up to `batch` images or programs at a time.

        On a GPU, `encode`, `interpret` and `decode` are recorded in CUDA graphs, now and for a few
        sizes of a batch: no later call records or compiles anything. Other arguments are those of
        `torch.compile`; if any are given, it compiles `forward`. On a CPU without any, this only
        warns: the first call would compile for minutes, and the other engines are faster.
        """
        from strop.model.graph_engine import GraphEngine, batch_sizes

        on_gpu = self.device.type == "cuda"
        if not (on_gpu or args or options):
            warnings.warn(
                "compile() without options does nothing on a CPU. "
                'For speed there, load the model with engine="openvino" or engine="onnx".',
                stacklevel=2,
            )
            return
        # Loading the teacher cannot be compiled, and it keeps what depends on the size alone.
        side = self.config.image_size
        self.teacher(torch.zeros(1, 3, side, side, dtype=torch.uint8, device=self.device))
        if args or options:
            super().compile(*args, **options)
        if on_gpu:
            engine = self.engine = GraphEngine(batch_sizes(batch), compiled=options or None)
            engine.prepare(self)

    # Files: see `strop.model.checkpoint`.

    def save_pretrained(
        self,
        save_directory: PathLike,
        *,
        dtype: torch.dtype | str = torch.float32,
    ) -> None:
        """Write `config.json`, `model.safetensors` and a model card into a folder.

        Parameters are written as `dtype`: float32, float16 or bfloat16, or such a name.
        """
        from strop.model.checkpoint import save_folder

        save_folder(self, save_directory, _DTYPES[precision_of(dtype) or "fp32"])

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        **options: Any,
    ) -> str:
        """Upload the model to the hub; returns the address of the commit.

        `options` are those of `HfApi.upload_folder`, such as `revision` and `commit_message`.
        """
        from tempfile import TemporaryDirectory

        from huggingface_hub import HfApi

        api = HfApi(token=token)
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            remedy = "Check the name, such as a/b, your token (`hf auth login`) and the network."
            with parsing(ModelError, f"{repo_id!r} cannot be uploaded to the hub", remedy):
                repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
                commit = api.upload_folder(repo_id=repo_id, folder_path=folder, **options)
        return str(commit)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: PathLike,
        *,
        device_map: str | torch.device | None = None,
        torch_dtype: torch.dtype | str | None = None,
        **options: Any,
    ) -> Tokenizer:
        """`strop.load`, which has the `options`, by the names that transformers uses.

        `device_map` is one device, or "auto", and `torch_dtype` is `dtype`.
        """
        from strop.model.checkpoint import load

        if device_map not in (None, "auto"):
            options["device"] = device_map
        if torch_dtype is not None:
            options["dtype"] = torch_dtype
        return load(pretrained_model_name_or_path, **options)

    # Internals.

    def _adopt(self, teacher: Teacher) -> None:
        if teacher.width != self.config.teacher.width:
            raise ConfigError(
                f"The teacher {self.config.teacher.name} has fields of width {teacher.width}, "
                f"the model expects {self.config.teacher.width}.",
                "Set teacher.width to the teacher's, or name another teacher.",
            )
        if self._teacher_digest not in ("", teacher.digest):
            raise TeacherError(
                f"The weights or the preprocessing of the teacher {self.config.teacher.name} "
                f"(digest {teacher.digest}) are not those that the model was trained with "
                f"({self._teacher_digest}).",
                "Restore the teacher's folder, or train a model on the new teacher.",
            )
        self.__dict__["_teacher"] = teacher.to(self.device)

    def train(self, mode: bool = True) -> Self:
        """Set training mode. A training step may move weights in ways that no digest sees, nor an
        engine."""
        self._known.clear()
        if mode:
            self.engine = ModelEngine()
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """For pickling: a teacher that was loaded by its name is loaded again when needed."""
        state = dict(super().__getstate__())  # type: ignore[no-untyped-call]
        if state["_teacher_has_name"]:
            state.update(_teacher=None, _teacher_digest=self.teacher_digest)
        return state

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        try:
            moved = fn(self.quantizer.codebook[:1])
        except (AssertionError, RuntimeError):
            check_device("cuda")  # says whether that is missing
            raise
        if moved.dtype != torch.float32:  # .half(), .double()
            raise ModelError(
                "A tokenizer keeps its weights in float32: a rounded codebook gives other codes.",
                'Set `tok.precision = "fp16"` (or "bf16"), which computes products in it.',
            )
        self._known.clear()
        self.engine = ModelEngine()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.__dict__["_teacher"] is not None:
            self.__dict__["_teacher"]._apply(fn)
        return self

    @property
    def product_dtype(self) -> torch.dtype:
        """What products are computed in: fp16 on a GPU, fp32 on a CPU, unless `precision` says
        otherwise.

        fp16 and not bf16: its three more bits decide between codes that lie close together.
        """
        return _DTYPES[self.precision or ("fp16" if self.device.type == "cuda" else "fp32")]

    def _autocast(self) -> AbstractContextManager[None]:
        dtype, kind = self.product_dtype, self.device.type
        if dtype == torch.float32 and kind == "cuda":
            return exact_products()
        return torch.autocast(kind, dtype, enabled=dtype != torch.float32)

    def _compute(self, work: Callable[..., Result], *batch: Tensor) -> Result:
        """What an engine makes of a batch; `ModelError` if it does not fit on the device."""
        try:
            return work(self, *batch)
        except torch.OutOfMemoryError as error:
            size = len(batch[0])
            smaller = f"Give batch={size // 2} (--batch {size // 2})."
            raise ModelError(
                f"{self.device} has too little memory for a batch of {size}.",
                smaller if size > 1 else 'Free some, or use the device "cpu".',
            ) from error

    def _scaled_field(self, images: Tensor) -> Tensor:
        with self._autocast():
            return self.teacher(images).float() * self.config.teacher.scale

    def _batches(self, images: Images, batch: int) -> Iterator[Tensor]:
        config = self.config
        return square_batches(
            images, size=config.image_size, fit=config.fit, batch=batch, device=self.device
        )

    def _known_identity(self) -> Identity:
        return self._known.of(self.config, self, self.teacher_digest)

    def wrote(self, model: str) -> bool:
        """Whether programs that carry `model` are of this model. It never loads the teacher."""
        return self._known_identity().wrote(model) or model in fingerprints(
            self.config, self.quantizer.codebook
        )

    def _readable(self, program: Program) -> tuple[Program, Tensor]:
        """A program that this model can read, on its device, and its active tokens `(B, L)`."""
        remedy = "Give what `encode` returns, or make a `Program` of the codes."
        expect(program, Program, "a program", ProgramError, remedy)
        program.check_fits(self.config.quantizer.codes, self.config.max_length)
        if program.model and not self.wrote(program.model):
            raise ProgramError(
                f"The program was written by model {program.model}, this is "
                f"{self._known_identity().codes}.",
                "Interpret it with the model that wrote it, or encode the image again.",
            )
        program = program.as_batch().to(self.device)
        return program, program.active[:, : int(program.lengths.max())]

    def _check_field(self, field: Tensor) -> None:
        expected = (self.config.grid**2, self.config.teacher.width)
        remedy = "Give a program to `decode`, or what `interpret` returns."
        expect(field, Tensor, "a field", ModelError, remedy)
        if field.ndim != 3 or field.shape[1:] != expected:
            raise ModelError(
                f"A field of shape {tuple(field.shape)} does not fit this model.",
                f"Give (B, {expected[0]}, {expected[1]}), as `interpret` returns it.",
            )


def check_tokenizer(value: object) -> None:
    """Refuse what is not a model, such as the name of one."""
    if not hasattr(value, "interpret"):  # what stands for a model has its methods
        expect(value, Tokenizer, "a loaded model", ModelError, "Load it with `strop.load`.")


_PRECISIONS: dict[str, Precision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


_DTYPES = {precision: getattr(torch, name) for name, precision in _PRECISIONS.items()}


def precision_of(dtype: torch.dtype | str | None) -> Precision | None:
    """A dtype of torch, or its name, as a `Precision`; None for the default of the device."""
    name = str(dtype).removeprefix("torch.")
    name = str(getattr(torch, name, name)).removeprefix("torch.")  # "half" is float16
    known = _PRECISIONS | {each: each for each in get_args(Precision)}
    if name not in {"None", "auto", *known}:
        raise ConfigError(f"dtype is {dtype!r}.", f"Give one of {', '.join(known)}.")
    return known.get(name)
