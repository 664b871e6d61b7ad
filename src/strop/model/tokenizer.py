"""The tokenizer: images to programs, programs to fields, fields to pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strop.errors import ConfigError, ImageError, ModelError, ProgramError, TeacherError
from strop.files import PathLike
from strop.identity import Identity, TensorDigests, legacy_fingerprint, of_tokenizer
from strop.images import ImageLike
from strop.model.decoder import Decoder
from strop.model.generator import Generator
from strop.model.inputs import names_of, square_batches
from strop.model.interpreter import Interpreter, prefix_mask
from strop.model.length_head import FixedLength, LengthHead, whole_lengths
from strop.model.quantizer import Quantizer
from strop.model.rate import check_mean_length, lengths_for_mean, shortest_within
from strop.model.rate_head import CONFIDENCE, RateHead
from strop.model.teacher import Teacher, load_teacher
from strop.model.tokenizer_config import TokenizerConfig
from strop.program import Program, check_range

__all__ = ["Encoding", "Precision", "Tokenizer", "TokenizerConfig"]

Precision = Literal["fp32", "fp16", "bf16"]


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


class Tokenizer(nn.Module):
    """A STROP: teacher, generator, quantizer, length head, interpreter and, if any, decoder.

    Inside, fields are in the teacher's scale times `config.teacher.scale`; what users give and
    get is in the teacher's own. The teacher is loaded when first needed, so that programs can be
    interpreted without it, and is no part of the parameters or the state dict.

    `about` states where the model comes from (data, steps, metrics); it is saved with the weights.
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
        # Not a submodule: see the docstring.
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

    @teacher_digest.setter
    def teacher_digest(self, digest: str) -> None:
        """For training on cached fields, which never loads the teacher."""
        self._teacher_digest = digest

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

        On a CPU in fp32, images are encoded one by one, so that a program never depends on the
        other images of its batch.
        """
        if sum(choice is not None for choice in (length, mean_length, tolerance)) > 1:
            raise ProgramError(
                "length, mean_length and tolerance were given together.", "Give at most one."
            )
        # Invalid options are refused before any image is read.
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
        names = names_of(images)
        codes, predicted, searched = [], [], []
        for part in self._batches(images, batch):
            encoding = self(part)
            codes.append(encoding.codes)
            predicted.append(encoding.predicted)
            if tolerance is not None:
                errors = self._errors_by_length(encoding.codes, encoding.field, batch)
                searched.append(shortest_within(errors, tolerance))
        wanted = torch.cat(predicted)
        _check_finite(wanted)
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
        """Interpret programs as fields `(B, S, d_enc)`, in the teacher's scale."""
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
        """Decode fields `(B, S, d_enc)` to pixels for inspection: `(B, 3, H, H)` in [0, 1]."""
        if self.decoder is None:
            raise ModelError(
                "This model has no pixel decoder.", "Train one with `strop train-decoder MODEL`."
            )
        expected = (self.config.grid**2, self.config.teacher.width)
        if not isinstance(field, Tensor):
            raise ModelError(
                f"A {type(field).__name__} is not a field.", "Give what `interpret` returns."
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
        parts = [self._scaled_field(part) / scale for part in self._batches(images, batch)]
        return torch.cat(parts)

    @torch.no_grad()
    def analyse(self, images: ImageLike | Sequence[ImageLike], *, batch: int = 32) -> Encoding:
        """Images to everything the model computes from them; see `encode` for what images may be.

        All parts stay on the model's device: for a large dataset, call it batch by batch.
        """
        return _joined([self(part) for part in self._batches(images, batch)])

    @torch.no_grad()
    def analyse_field(self, field: Tensor, *, batch: int = 64) -> Encoding:
        """Like `analyse`, from fields `(B, S, d_enc)` in the teacher's scale."""
        scale = self.config.teacher.scale
        parts = [self._analyse(part.to(self.device).float() * scale) for part in field.split(batch)]
        return _joined(parts)

    def to_program(self, encoding: Encoding) -> Program:
        """The program of an encoding at its predicted lengths."""
        return Program(
            codes=encoding.codes,
            lengths=encoding.lengths,
            codebook_size=self.config.quantizer.codes,
            model=self.identity.codes,
        )

    def forward(self, pixel_values: Tensor) -> Encoding:
        """uint8 images `(B, 3, H, H)` to everything the model computes from them.

        The part of `encode` and `analyse` that is pure tensors: `model.compile()` compiles it.
        Where a field is not finite, `predicted` is NaN: a length head can turn infinity into an
        ordinary number.
        """
        if pixel_values.dtype != torch.uint8:
            raise ImageError(
                f"The model was called with {pixel_values.dtype} images.",
                "Call it with uint8 (B, 3, H, H), or give floats in [0, 1] to `encode`.",
            )
        return self._analyse(self._scaled_field(pixel_values))

    def _analyse(self, scaled: Tensor) -> Encoding:
        with self._autocast():
            raw = self.generator(scaled)
            quantized = self.quantizer(raw)
            predicted = self._predicted(self.length_head(scaled))
        finite = scaled.isfinite().flatten(1).all(dim=1)
        return Encoding(
            field=scaled / self.config.teacher.scale,
            raw=raw,
            z=quantized.z,
            codes=quantized.codes,
            z_q=quantized.z_q,
            predicted=predicted.masked_fill(~finite, torch.nan),
            lengths=whole_lengths(predicted, self.config.max_length),
        )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile `forward`; arguments are `torch.compile`'s."""
        _ = self.teacher  # loading it cannot be compiled
        super().compile(*args, **kwargs)

    # Files: see `strop.model.checkpoint`.

    def save_pretrained(
        self,
        save_directory: PathLike,
        *,
        dtype: torch.dtype = torch.float32,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        **push: Any,
    ) -> None:
        """Write `config.json`, `model.safetensors` and a model card into a folder.

        With `push_to_hub` the model is also uploaded, as `repo_id` or under the folder's name;
        `push` goes to `push_to_hub`.
        """
        from strop.model.checkpoint import save_folder

        if push and not push_to_hub:
            raise ConfigError(
                f"save_pretrained does not know {', '.join(push)}.",
                "Give push_to_hub=True to upload, or leave it out.",
            )
        save_folder(self, save_directory, dtype)
        if push_to_hub:
            self.push_to_hub(repo_id or Path(save_directory).name, **push)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str = "Upload a strop model",
        create_pr: bool = False,
    ) -> str:
        """Upload the model to the hub; returns the address of the commit."""
        from strop.model.checkpoint import push_folder

        return push_folder(
            self,
            repo_id,
            private=private,
            token=token,
            revision=revision,
            commit_message=commit_message,
            create_pr=create_pr,
        )

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: PathLike,
        *,
        device: str | torch.device | None = None,
        device_map: str | torch.device | None = None,
        dtype: torch.dtype | str | None = None,
        torch_dtype: torch.dtype | str | None = None,
        verify: bool = True,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: PathLike | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> Tokenizer:
        """`strop.load` with the names of transformers.

        `device_map` is one device, or "auto" for a GPU if there is one. `dtype` (or `torch_dtype`)
        sets `precision`: weights stay float32 and products are computed in `dtype`.
        """
        from strop.model.checkpoint import load

        precision = _precision(torch_dtype if dtype is None else dtype)
        if isinstance(device_map, dict):
            raise ModelError("device_map is a dict.", "A tokenizer is on one device: name that.")
        tokenizer = load(
            pretrained_model_name_or_path,
            device=device or (None if device_map == "auto" else device_map),
            verify=verify,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            force_download=force_download,
        )
        tokenizer.precision = precision
        return tokenizer

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
        """Set training mode. A training step may move weights in ways that no digest sees."""
        self._digests.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        codebook = self.quantizer.codebook
        if fn(codebook[:1]).dtype != codebook.dtype:  # .half(), .bfloat16(), .to(torch.float16)
            raise ModelError(
                "A tokenizer keeps its weights in float32: a rounded codebook gives other codes.",
                'Set `tok.precision = "fp16"` (or "bf16"), which computes products in it.',
            )
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

    def _batches(self, images: ImageLike | Sequence[ImageLike], batch: int) -> Iterator[Tensor]:
        config = self.config
        return square_batches(
            images, size=config.image_size, fit=config.fit, batch=batch, device=self.device
        )

    def _known_identity(self) -> Identity:
        return of_tokenizer(self.config, self, self.known_teacher_digest, self._digests)

    def wrote(self, model: str) -> bool:
        """Whether programs that carry `model` are of this model. It never loads the teacher."""
        return self._known_identity().wrote(model) or model == legacy_fingerprint(
            self.config, self.quantizer.codebook
        )

    def _check_program(self, program: Program) -> None:
        if not isinstance(program, Program):
            raise ProgramError(
                f"A {type(program).__name__} is not a program.",
                "Give what `encode` returns, or make a `Program` of the codes.",
            )
        program.check_fits(self.config.quantizer.codes, self.config.max_length)
        if program.model and not self.wrote(program.model):
            raise ProgramError(
                f"The program was written by model {program.model}, this is "
                f"{self._known_identity().codes}.",
                "Interpret it with the model that wrote it, or encode the image again.",
            )


def _length_head(config: TokenizerConfig) -> LengthHead | RateHead | FixedLength:
    shape = {"field_width": config.teacher.width, "length": config.max_length}
    if config.length_head.fixed is not None:
        return FixedLength(config.length_head.fixed)
    kind = RateHead if config.length_head.kind == "rate" else LengthHead
    return kind(config.length_head, **shape)


_PRECISIONS: dict[str, Precision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def _precision(dtype: torch.dtype | str | None) -> Precision | None:
    """A dtype of torch, or its name, as a `Precision`; None for the default of the device."""
    name = str(dtype).removeprefix("torch.")
    if name in ("None", "auto"):
        return None
    if name not in _PRECISIONS:
        raise ConfigError(f"dtype is {dtype!r}.", f"Give one of {', '.join(_PRECISIONS)}.")
    return _PRECISIONS[name]


def _joined(parts: Sequence[Encoding]) -> Encoding:
    names = [each.name for each in fields(Encoding)]
    joined = Encoding(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})
    _check_finite(joined.predicted)
    return joined


def _check_finite(predicted: Tensor) -> None:
    if not torch.isfinite(predicted).all():
        raise ModelError(
            "The teacher's field is not finite.",
            'If its features leave fp16\'s range, set `precision = "bf16"`.',
        )


def _size(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
