"""The whole: images to programs, programs to fields, fields to pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from huggingface_hub import ModelHubMixin
from torch import Tensor, nn

from strop.errors import ConfigError, ImageError, ModelError, ProgramError, TeacherError
from strop.files import PathLike
from strop.identity import Identity, TensorDigests, legacy_fingerprint, of_tokenizer
from strop.images import Fit, ImageLike, fit_square, tensor_to_bytes, to_tensor
from strop.model.decoder import Decoder, DecoderConfig
from strop.model.generator import Generator, GeneratorConfig
from strop.model.interpreter import Interpreter, InterpreterConfig, prefix_mask
from strop.model.length_head import FixedLength, LengthHead, LengthHeadConfig, whole_lengths
from strop.model.quantizer import Quantizer, QuantizerConfig
from strop.model.rate import check_mean_length, lengths_for_mean, shortest_within
from strop.model.rate_head import CONFIDENCE, RateHead
from strop.model.teacher import PIXELS_PER_LOCATION, Teacher, TeacherConfig, load_teacher
from strop.program import Program, check_range

Precision = Literal["fp32", "fp16", "bf16"]


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Everything that fixes a model's shape and how it looks at images; `config.json` holds it.

    image_size  H: images become squares of this side, by `fit`
    max_length  K: how many codes the generator writes
    """

    teacher: TeacherConfig
    image_size: int = 256
    fit: Fit = "squash"
    max_length: int = 64
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    quantizer: QuantizerConfig = field(default_factory=QuantizerConfig)
    length_head: LengthHeadConfig = field(default_factory=LengthHeadConfig)
    interpreter: InterpreterConfig = field(default_factory=InterpreterConfig)
    decoder: DecoderConfig | None = None

    def __post_init__(self) -> None:
        _check_positive(self, "")
        if self.image_size % PIXELS_PER_LOCATION:
            raise ConfigError(
                f"image_size is {self.image_size}.",
                f"Give a multiple of {PIXELS_PER_LOCATION}, such as 128 or 256.",
            )
        for name, part in (("generator", self.generator), ("interpreter", self.interpreter)):
            if part.width % part.heads:
                raise ConfigError(
                    f"{name}.width is {part.width} for {part.heads} heads.",
                    "Give a width that the heads can share evenly.",
                )
        if self.quantizer.codes < 2:
            raise ConfigError(
                f"quantizer.codes is {self.quantizer.codes}.",
                "Give at least 2: a program of one code says nothing.",
            )
        if self.quantizer.decay >= 1:
            raise ConfigError(
                f"quantizer.decay is {self.quantizer.decay}.", "Give a number between 0 and 1."
            )

    @property
    def grid(self) -> int:
        """h = w: locations along one side of the field."""
        return self.image_size // PIXELS_PER_LOCATION

    @property
    def bits(self) -> float:
        """What a program of full length costs at a fixed rate."""
        return self.max_length * math.log2(self.quantizer.codes)


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoding:
    """Everything a tokenizer computes on the way from B images to their programs.

    field      (B, S, d_enc) float32, the teacher's, in the teacher's own scale
    raw        (B, K, d) the generator's tokens
    z          (B, K, d_c) float32, raw tokens projected onto the unit sphere
    codes      (B, K) int64
    z_q        (B, K, d_c) float32, the code vectors
    predicted  (B,) float32, lengths as predicted: real numbers in (0, K)
    lengths    (B,) int64, rounded and clipped to [1, K]
    """

    field: Tensor
    raw: Tensor
    z: Tensor
    codes: Tensor
    z_q: Tensor
    predicted: Tensor
    lengths: Tensor


class Tokenizer(
    nn.Module,
    ModelHubMixin,
    library_name="strop",
    license="apache-2.0",
    tags=["strop", "image-tokenizer", "vector-quantization"],
):
    """A STROP: teacher, generator, quantizer, length head, interpreter and, if any, decoder.

    Inside, fields are in the teacher's scale times `config.teacher.scale`; what users give and
    get is in the teacher's own. The teacher is loaded when first needed, so that programs can be
    interpreted without it, and is no part of the parameters or the state dict.

    `about` tells where the model comes from (data, steps, metrics); it travels with the weights.
    With a `teacher_digest` only a teacher of this digest is accepted.
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
        self.config = config
        self.about = about or {}
        self.precision: Precision | None = None
        self._teacher_digest = teacher_digest
        self._digests = TensorDigests()
        shape = {"locations": config.grid**2, "length": config.max_length}
        width = config.teacher.width
        self.generator = Generator(config.generator, field_width=width, **shape)
        self.quantizer = Quantizer(
            config.quantizer, width=config.generator.width, length=config.max_length
        )
        self.length_head = _length_head(config)
        self.interpreter = Interpreter(
            config.interpreter, code_width=config.quantizer.code_width, field_width=width, **shape
        )
        self.decoder = Decoder(config.decoder, field_width=width) if config.decoder else None
        # Behind nn.Module's back: see the docstring.
        self.__dict__["_teacher"] = None
        if teacher is not None:
            self._adopt(teacher)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.quantizer.codebook.device

    @property
    def teacher(self) -> Teacher:
        """The frozen teacher, loaded at first use."""
        if self.__dict__["_teacher"] is None:
            self._adopt(load_teacher(self.config.teacher.name))
        return self.__dict__["_teacher"]

    @property
    def trainable_parameters(self) -> int:
        """Parameters of generator, quantizer, length head and interpreter, as the paper counts."""
        decoder = self.decoder.parameters() if self.decoder else []
        return _size(self.parameters()) - _size(decoder)

    @property
    def teacher_digest(self) -> str:
        """The digest of the teacher. A model that does not know it loads the teacher."""
        return self._teacher_digest or self.teacher.digest

    @property
    def known_teacher_digest(self) -> str:
        """Like `teacher_digest`, but empty if only loading the teacher would tell it."""
        teacher = self.__dict__["_teacher"]
        return self._teacher_digest or ("" if teacher is None else teacher.digest)

    @property
    def identity(self) -> Identity:
        """Digests of what could change a code, a field, a length, a picture."""
        return of_tokenizer(self.config, self, self.teacher_digest, self._digests)

    # The three verbs.

    @torch.no_grad()
    def encode(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        length: int | Tensor | Literal["max"] | None = None,
        mean_length: float | None = None,
        tolerance: float | None = None,
        batch: int = 32,
    ) -> Program:
        """Images to their programs.

        images       a path, bytes, PIL image, array or tensor; or a sequence of these; or a batch
                     `(B, 3, H, W)`, uint8 or float in [0, 1]
        length       force one length, or one per image, or "max" for all K
        mean_length  let the lengths follow the images, but average this over the batch
        tolerance    search each image's shortest length whose cosine error is at most this much
                     above its best; costs K interpretations an image
        batch        how many images are on the device at a time

        On a CPU in fp32 images go through one by one, so that a program never depends on the
        company its image was in.
        """
        if sum(choice is not None for choice in (length, mean_length, tolerance)) > 1:
            raise ProgramError(
                "length, mean_length and tolerance were given together.", "Give at most one."
            )
        # Asked for nonsense, say so before the work.
        if isinstance(length, str) and length != "max":
            raise ProgramError(f"length is {length!r}.", 'Give a number, or "max" for all K.')
        if length is not None and not isinstance(length, str):
            length = torch.as_tensor(length)
            if length.is_floating_point():
                raise ProgramError(
                    f"A length of {length.flatten()[0]:g} was given as a float.",
                    "Give a whole number, or a tensor of them, one per image.",
                )
            check_range(length, 1, self.config.max_length, "length")
        if mean_length is not None:
            check_mean_length(mean_length, self.config.max_length)
        if tolerance is not None and not tolerance >= 0:
            raise ProgramError(f"A tolerance of {tolerance} is not one.", "Give 0 or more.")
        names = _names(images)
        codes, predicted, searched = [], [], []
        for chunk in self._chunks(images, batch):
            chunk_codes, chunk_predicted = self(chunk)
            codes.append(chunk_codes)
            predicted.append(chunk_predicted)
            if tolerance is not None:
                errors = self._errors_by_length(chunk_codes, self._scaled_field(chunk), batch)
                searched.append(shortest_within(errors, tolerance))
        wanted = torch.cat(predicted)
        if not torch.isfinite(wanted).all():
            raise ModelError(
                "The teacher's field is not finite.",
                'If its features leave fp16\'s range, set `precision = "bf16"`.',
            )
        lengths = self._lengths(wanted, length, mean_length)
        return Program(
            codes=torch.cat(codes),
            lengths=torch.cat(searched) if searched else lengths,
            codebook_size=self.config.quantizer.codes,
            model=self.identity.codes,
            names=names,
            check=isinstance(length, Tensor),
        )

    @torch.no_grad()
    def interpret(self, program: Program, *, batch: int = 256) -> Tensor:
        """Programs to the field `(B, S, d_enc)` they stand for, in the teacher's scale."""
        self._check_program(program)
        program = program.as_batch().to(self.device)
        longest = int(program.lengths.max())
        codes, active = program.codes[:, :longest], program.active[:, :longest]
        parts = [
            self._interpret(codes[i : i + batch], active[i : i + batch])
            for i in range(0, len(codes), batch)
        ]
        return torch.cat(parts) / self.config.teacher.scale

    @torch.no_grad()
    def decode(self, field: Tensor, *, batch: int = 64) -> Tensor:
        """A field `(B, S, d_enc)` to pixels to look at: `(B, 3, H, H)` in [0, 1]."""
        if self.decoder is None:
            raise ModelError(
                "This model has no pixel decoder.", "Train one with `strop train-decoder MODEL`."
            )
        expected = (self.config.grid**2, self.config.teacher.width)
        if not isinstance(field, Tensor):
            raise ModelError(
                f"A {type(field).__name__} is no field.", "Give what `interpret` returns."
            )
        if field.ndim != 3 or field.shape[1:] != expected:
            raise ModelError(
                f"A field of shape {tuple(field.shape)} does not fit this model.",
                f"Give (B, {expected[0]}, {expected[1]}), as `interpret` returns it.",
            )
        was_training = self.decoder.training
        self.decoder.eval()
        try:
            scaled = field.to(self.device) * self.config.teacher.scale
            return torch.cat([self.decoder(part).float() for part in scaled.split(batch)])
        finally:
            self.decoder.train(was_training)

    @torch.no_grad()
    def field(
        self, images: ImageLike | Sequence[ImageLike], *, batch: int = 32, resize: bool = True
    ) -> Tensor:
        """The teacher's field of images, `(B, S, d_enc)`: what `interpret` tries to reproduce.

        Without `resize`, a uint8 batch `(B, 3, H, W)` of any size keeps it, and S follows.
        """
        scale = self.config.teacher.scale
        if not resize:
            return self._scaled_field(torch.as_tensor(images).to(self.device)) / scale
        chunks = self._chunks(images, batch)
        return torch.cat([self._scaled_field(chunk) / scale for chunk in chunks])

    @torch.no_grad()
    def analyse(self, images: ImageLike | Sequence[ImageLike], *, batch: int = 32) -> Encoding:
        """Images to everything the model computes from them; see `encode` for what images may be.

        All parts stay on the model's device: for a large dataset, call it batch by batch.
        """
        parts = [self._analyse(self._scaled_field(part)) for part in self._chunks(images, batch)]
        return _joined(parts)

    @torch.no_grad()
    def analyse_field(self, field: Tensor, *, batch: int = 64) -> Encoding:
        """Like `analyse`, from fields `(B, S, d_enc)` in the teacher's scale."""
        scale = self.config.teacher.scale
        parts = [self._analyse(part.to(self.device).float() * scale) for part in field.split(batch)]
        return _joined(parts)

    def _analyse(self, scaled: Tensor) -> Encoding:
        with self._autocast():
            raw = self.generator(scaled)
            quantized = self.quantizer(raw)
            predicted = self._predicted(self.length_head(scaled))
        return Encoding(
            field=scaled / self.config.teacher.scale,
            raw=raw,
            z=quantized.z,
            codes=quantized.codes,
            z_q=quantized.z_q,
            predicted=predicted,
            lengths=whole_lengths(predicted, self.config.max_length),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 images `(B, 3, H, H)` to all codes `(B, K)` and predicted lengths `(B,)`.

        The part of `encode` that is pure tensors: `model.compile()` compiles it. Where the field
        is not finite the length is NaN: a length head may well make a number of infinity.
        """
        field = self._scaled_field(images)
        with self._autocast():
            codes = self.quantizer(self.generator(field)).codes
            predicted = self._predicted(self.length_head(field))
        finite = field.isfinite().flatten(1).all(dim=1)
        return codes, predicted.masked_fill(~finite, torch.nan)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile `forward`; arguments are `torch.compile`'s."""
        _ = self.teacher  # loading it is nothing that can be compiled
        super().compile(*args, **kwargs)

    # Files: see `strop.model.checkpoint`.

    def save_pretrained(
        self,
        save_directory: PathLike,
        *,
        dtype: torch.dtype = torch.float32,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        config: object = None,
        model_card_kwargs: object = None,
        **push: Any,
    ) -> None:
        """Write `config.json`, `model.safetensors` and a model card into a folder.

        With `push_to_hub` the model is also uploaded, as `repo_id` or under the folder's name.
        `config` and `model_card_kwargs` are the hub mixin's; both files come from the model.
        """
        from strop.model.checkpoint import save_folder

        save_folder(self, save_directory, dtype)
        if push_to_hub:
            self.push_to_hub(repo_id or Path(save_directory).name, **push)
        elif push:
            raise ConfigError(
                f"save_pretrained does not know {', '.join(push)}.",
                "Give push_to_hub=True to upload, or leave it out.",
            )

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: PathLike, **hub: Any) -> Tokenizer:
        """Read a bundled model, a folder, or a hub id; `hub` goes to the download."""
        from strop.model.checkpoint import load

        return load(pretrained_model_name_or_path, **hub)

    # Inside.

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
        """Set training mode. A training step may move weights in ways that no digest sees."""
        self._digests.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._digests.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.__dict__["_teacher"] is not None:
            self.__dict__["_teacher"]._apply(fn)
        return self

    def _autocast(self) -> torch.autocast:
        """fp16 on a GPU, fp32 on a CPU, unless `precision` says otherwise.

        fp16 and not bf16: its three more bits decide between codes that lie close together.
        """
        precision = self.precision or ("fp16" if self.device.type == "cuda" else "fp32")
        kind = torch.float16 if precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, kind, enabled=precision != "fp32")

    def _scaled_field(self, images: Tensor) -> Tensor:
        with self._autocast():
            return self.teacher(images).float() * self.config.teacher.scale

    def _interpret(self, codes: Tensor, active: Tensor) -> Tensor:
        """Codes and mask `(B, L)` to the scaled field `(B, S, d_enc)`."""
        with self._autocast():
            return self.interpreter(self.quantizer.vectors(codes), active).float()

    def _predicted(self, prediction: Tensor) -> Tensor:
        """What the length head returned as lengths `(B,)` float32."""
        head = self.length_head
        if not isinstance(head, RateHead):
            return prediction
        return head.shortest(prediction, head.quality, CONFIDENCE).float()

    def _errors_by_length(self, codes: Tensor, target: Tensor, batch: int) -> Tensor:
        """Mean cosine error at every forced length: codes `(B, K)` to `(B, K)`."""
        capacity = codes.shape[1]
        lengths = torch.arange(1, capacity + 1, device=codes.device).repeat(len(codes))
        rows = torch.arange(len(codes), device=codes.device).repeat_interleave(capacity)
        errors = [
            1
            - F.cosine_similarity(
                self._interpret(codes[row], prefix_mask(length, capacity)), target[row], dim=-1
            ).mean(dim=1)
            for row, length in zip(rows.split(batch), lengths.split(batch), strict=True)
        ]
        return torch.cat(errors).view(len(codes), capacity)

    def _lengths(
        self,
        predicted: Tensor,
        length: Tensor | Literal["max"] | None,
        mean_length: float | None,
    ) -> Tensor:
        capacity = self.config.max_length
        if length == "max":
            length = torch.tensor(capacity)
        if length is not None:
            forced = length.to(predicted.device, torch.int64)
            return forced if forced.ndim else forced.repeat(len(predicted))
        if mean_length is not None:
            return lengths_for_mean(predicted, mean_length, capacity)
        return whole_lengths(predicted, capacity)

    def _chunks(self, images: ImageLike | Sequence[ImageLike], batch: int) -> Iterator[Tensor]:
        """Any images as uint8 batches of the model's size on its device; singly on a CPU."""
        size, fit = self.config.image_size, self.config.fit
        batch = 1 if self.device.type == "cpu" else batch
        if isinstance(images, Tensor) and images.ndim == 4:
            if images.shape[1] != 3:
                raise ImageError(
                    f"A tensor of shape {tuple(images.shape)} is not a batch of RGB images.",
                    "Give it as (B, 3, H, W).",
                )
            for part in tensor_to_bytes(images).split(batch):
                yield fit_square(part.to(self.device), size, fit)
            return
        several = _several(images)
        if not several:
            raise ImageError("There are no images to encode.", "Give at least one.")
        for start in range(0, len(several), batch):
            squares = [
                fit_square(to_tensor(image), size, fit) for image in several[start : start + batch]
            ]
            yield torch.stack([square.to(self.device) for square in squares])

    def _known_identity(self) -> Identity:
        return of_tokenizer(self.config, self, self.known_teacher_digest, self._digests)

    def _wrote(self, model: str) -> bool:
        """Whether programs that carry `model` are of this model. It never loads the teacher."""
        return self._known_identity().wrote(model) or model == legacy_fingerprint(
            self.config, self.quantizer.codebook
        )

    def _check_program(self, program: Program) -> None:
        if not isinstance(program, Program):
            raise ProgramError(
                f"A {type(program).__name__} is no program.",
                "Give what `encode` returns, or make a `Program` of the codes.",
            )
        if program.codebook_size != self.config.quantizer.codes:
            raise ProgramError(
                f"The program's codebook has {program.codebook_size} codes, "
                f"this model's {self.config.quantizer.codes}.",
                "Interpret it with the model that wrote it (--model on the command line).",
            )
        if program.model and not self._wrote(program.model):
            raise ProgramError(
                f"The program was written by model {program.model}, this is "
                f"{self._known_identity().codes}.",
                "Interpret it with the model that wrote it, or encode the image again.",
            )
        if program.capacity > self.config.max_length:
            raise ProgramError(
                f"The program has room for {program.capacity} codes, this model reads "
                f"{self.config.max_length}.",
                "Interpret it with the model that wrote it.",
            )


def _length_head(config: TokenizerConfig) -> LengthHead | RateHead | FixedLength:
    shape = {"field_width": config.teacher.width, "length": config.max_length}
    if config.length_head.fixed is not None:
        return FixedLength(config.length_head.fixed)
    kind = RateHead if config.length_head.kind == "rate" else LengthHead
    return kind(config.length_head, **shape)


def _check_positive(config: Any, where: str) -> None:
    """Every number in a model's config is above 0 and finite, in its parts too."""
    for each in fields(config):
        value = getattr(config, each.name)
        if is_dataclass(value):
            _check_positive(value, f"{where}{each.name}.")
        for number in value if isinstance(value, tuple) else (value,):
            if type(number) in (int, float) and not 0 < number < math.inf:
                raise ConfigError(f"{where}{each.name} is {number}.", "Give a number above 0.")


def _joined(parts: Sequence[Encoding]) -> Encoding:
    names = [each.name for each in fields(Encoding)]
    return Encoding(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


def _size(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _several(images: Any) -> Sequence[Any]:
    return images if isinstance(images, list | tuple) else [images]


def _names(images: Any) -> tuple[str, ...]:
    """The names of images given as paths, or none if any is not."""
    several = _several(images)
    if all(isinstance(image, str | Path) for image in several):
        return tuple(str(image) for image in several)
    return ()
