"""The whole: sizes of the paper, the three verbs, and programs that depend on nothing else."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from strop.config import from_dict
from strop.errors import ConfigError, ImageError, ModelError, ProgramError
from strop.model.layers import TransformerConfig
from strop.model.length_head import LengthHeadConfig
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import TeacherConfig, teacher_parameters
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.program import Program

K = 12

# The paper's table.

SIZES = {
    "S": {"width": 256, "depth": 8, "heads": 8, "feedforward": 1024},
    "M": {"width": 512, "depth": 10, "heads": 8, "feedforward": 2048},
}
VARIANTS = [  # teacher, its width, size, trainable and total parameters in millions
    ("dinov3-s", 384, "S", 13.5, 35.1),
    ("dinov3-s", 384, "M", 64.3, 85.9),
    ("dinov3-b", 768, "S", 14.2, 99.8),
    ("dinov3-b", 768, "M", 65.1, 150.8),
    ("dinov3-l", 1024, "M", 65.6, 368.8),
]


@pytest.mark.parametrize(("teacher", "width", "size", "alone", "with_teacher"), VARIANTS)
def test_parameter_counts_are_the_papers(teacher, width, size, alone, with_teacher):
    config = TokenizerConfig(
        teacher=TeacherConfig(name=teacher, width=width),
        generator=TransformerConfig(**SIZES[size]),
        interpreter=TransformerConfig(**SIZES[size]),
    )
    with torch.device("meta"):
        tokenizer = Tokenizer(config)
    trainable = tokenizer.trainable_parameters
    assert abs(trainable / 1e6 - alone) <= 0.1
    assert abs((trainable + teacher_parameters(teacher)) / 1e6 - with_teacher) <= 0.1


def test_the_decoder_is_not_counted(make_tokenizer):
    with_one, without = make_tokenizer(), make_tokenizer(decoder=None)
    assert with_one.decoder is not None
    assert with_one.trainable_parameters == without.trainable_parameters


def test_the_defaults_are_strop_s_at_256_pixels():
    config = TokenizerConfig(teacher=TeacherConfig(name="dinov3-s", width=384))
    assert (config.image_size, config.max_length, config.quantizer.codes) == (256, 64, 1024)
    assert (config.grid, config.bits) == (16, 640)
    assert config.generator == TransformerConfig(**SIZES["S"])
    assert config.interpreter == TransformerConfig(**SIZES["S"])


# Programs depend on their image and on nothing else.


@pytest.fixture(scope="module")
def program(tokenizer, images) -> Program:
    return tokenizer.encode(images)


def exact(a: Program, b: Program) -> bool:
    """Equal in everything, inactive codes too."""
    return torch.equal(a.codes, b.codes) and torch.equal(a.lengths, b.lengths) and a == b


def test_images_get_programs_and_lengths_of_their_own(program):
    """Guards the tests below: were all programs alike, they would show nothing."""
    assert len({tuple(codes) for codes in program.codes.tolist()}) == 6
    assert len(set(program.lengths.tolist())) >= 3
    assert program.codes.unique().numel() > 20


@pytest.fixture(scope="module")
def touchy(make_tokenizer) -> Tokenizer:
    """Codes a hair apart: a change in the last bit of a raw token is often another code."""
    tokenizer = make_tokenizer(quantizer=QuantizerConfig(codes=512, code_width=8))
    codebook = tokenizer.quantizer.codebook
    hair = 1e-7 * torch.randn(512, 8, generator=torch.Generator().manual_seed(0))
    codebook.copy_(codebook[:16].repeat(32, 1) + hair)
    return tokenizer


@pytest.fixture(scope="module")
def touchy_program(touchy, images) -> Program:
    return touchy.encode(images)


def test_the_touchy_model_is_touchy(touchy, images, touchy_program):
    """Guards the tests below: a push too small to matter elsewhere changes codes here."""
    raw = touchy.generator(touchy._scaled_field(images))
    pushed = touchy.quantizer(raw * (1 + 1e-6 * torch.randn_like(raw))).codes
    assert not torch.equal(pushed, touchy_program.codes)


def test_a_program_is_the_same_alone_and_in_a_batch(touchy, images, touchy_program):
    alone = Program.cat([touchy.encode(image) for image in images])
    assert exact(alone, touchy_program)


def test_a_program_is_the_same_in_another_order(touchy, images, touchy_program):
    order = [4, 0, 5, 2, 1, 3]
    assert exact(touchy.encode(images[order]), touchy_program[order])


def test_a_program_is_the_same_in_other_company(touchy, images, touchy_program):
    for batch in (1, 4, 32):
        assert exact(touchy.encode(images[2:5], batch=batch), touchy_program[2:5])
    assert exact(touchy.encode(images[[3, 3, 3]]), touchy_program[[3, 3, 3]])
    assert exact(touchy.encode(list(images)), touchy_program)


def test_on_a_cpu_images_go_through_one_by_one(make_tokenizer, images, monkeypatch):
    """What the tests above rest on: kernels may round a batch otherwise than its rows."""
    tokenizer, sizes = make_tokenizer(), []
    forward = tokenizer.forward
    monkeypatch.setattr(tokenizer, "forward", lambda x: sizes.append(len(x)) or forward(x))
    tokenizer.encode(images, batch=4)
    assert sizes == [1] * 6


def test_a_program_is_the_same_after_save_and_load(touchy, images, touchy_program, tmp_path):
    touchy.save_pretrained(tmp_path)
    assert exact(Tokenizer.from_pretrained(tmp_path, device="cpu").encode(images), touchy_program)


def test_encoding_is_the_same_in_training_mode_and_changes_nothing(make_tokenizer, images, program):
    tokenizer = make_tokenizer().train()
    before = {name: value.clone() for name, value in tokenizer.state_dict().items()}
    assert exact(tokenizer.encode(images), program)
    tokenizer.interpret(program)
    assert all(torch.equal(before[name], value) for name, value in tokenizer.state_dict().items())


def test_the_kind_of_image_does_not_matter(tokenizer, images, program, tmp_path):
    array = images[1].permute(1, 2, 0).numpy()
    path = tmp_path / "one.png"
    Image.fromarray(array).save(path)
    for kind in (
        path,
        str(path),
        path.read_bytes(),
        Image.fromarray(array),
        array,
        images[1],
        images[1].float() / 255,
    ):
        assert exact(tokenizer.encode(kind), program[[1]])
    assert exact(tokenizer.encode(images[1:2]), program[[1]])
    mixed = tokenizer.encode([path, images[1], Image.fromarray(array)])
    assert exact(mixed, program[[1, 1, 1]])


def test_paths_become_names(tokenizer, images, tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(images[0].permute(1, 2, 0).numpy()).save(path)
    assert tokenizer.encode([path, str(path)]).names == (str(path), str(path))
    assert tokenizer.encode([path, images[0]]).names == ()


def test_a_program_knows_its_model(tokenizer, program):
    assert program.codebook_size == 64
    assert program.model == tokenizer.identity.codes
    assert re.fullmatch(r"[0-9a-f]{12}-[0-9a-f]{12}", program.model)


def test_squash_keeps_the_whole_picture_and_crop_its_centre(make_tokenizer, images):
    wide = torch.cat([images[0], images[1], images[2]], dim=-1)
    cropped = make_tokenizer(fit="crop").encode(wide)
    middle = make_tokenizer(fit="crop").encode(images[1])
    assert cropped.codes.tolist() == middle.codes.tolist()
    squashed = make_tokenizer().encode(wide)
    assert squashed.codes.tolist() != make_tokenizer().encode(images[1]).codes.tolist()


# Interpretation.


def far(a, b) -> bool:
    return bool((a - b).abs().max() > 1e-3)


@pytest.mark.parametrize("length", [1, 5, 11, K])
def test_a_truncated_program_reads_as_the_full_one_masked(tokenizer, program, length):
    """Sliced by `interpret`, against masked by hand, as in training."""
    full = program.with_lengths(K)
    z_q = tokenizer.quantizer.vectors(full.codes)
    active = torch.arange(K).expand(6, -1) < length
    masked = tokenizer.interpreter(z_q, active) / tokenizer.config.teacher.scale
    torch.testing.assert_close(
        tokenizer.interpret(full.truncate(length)), masked, atol=1e-4, rtol=1e-4
    )


def test_rows_of_different_lengths_read_as_each_alone(tokenizer, program):
    together = tokenizer.interpret(program)
    assert together.shape == (6, 16, 192)
    for row, one in enumerate(program):
        torch.testing.assert_close(tokenizer.interpret(one)[0], together[row], atol=1e-4, rtol=1e-4)


def test_batches_of_interpretation_do_not_matter(tokenizer, program):
    torch.testing.assert_close(
        tokenizer.interpret(program, batch=2), tokenizer.interpret(program), atol=1e-4, rtol=1e-4
    )


def test_erasing_changes_the_output_and_no_other_position(tokenizer, program):
    full = program.with_lengths(K)
    erased = full.erase(3)
    assert far(tokenizer.interpret(full), tokenizer.interpret(erased))
    assert torch.equal(erased.codes, full.codes)
    assert erased.active.int().sum(dim=1).tolist() == [K - 1] * 6
    # A hole reads the same whatever code is under it.
    other = Program(
        codes=torch.where(erased.erased, (full.codes + 1) % 64, full.codes),
        lengths=full.lengths,
        codebook_size=64,
        erased=erased.erased,
    )
    assert torch.equal(tokenizer.interpret(erased), tokenizer.interpret(other))


def test_deleting_moves_what_follows(tokenizer, program):
    full = program.with_lengths(K)
    deleted, erased = full.delete(3), full.erase(3)
    assert torch.equal(deleted.codes[:, 3 : K - 1], full.codes[:, 4:])
    assert deleted.lengths.tolist() == [K - 1] * 6
    assert far(tokenizer.interpret(deleted), tokenizer.interpret(erased))
    # At the end there is nothing to move, so that both are the same.
    torch.testing.assert_close(
        tokenizer.interpret(full.delete(K - 1)), tokenizer.interpret(full.erase(K - 1))
    )


def test_erasing_or_deleting_an_inactive_token_does_nothing(tokenizer, program):
    short = program.with_lengths(4)
    for edited in (short.erase(4), short.erase(K - 1), short.delete(4), short.replace(7, 1)):
        assert edited == short
        assert torch.equal(tokenizer.interpret(edited), tokenizer.interpret(short))


def test_no_code_past_the_length_influences_anything(tokenizer, program):
    within = torch.arange(K) < program.lengths[:, None]
    other = Program(
        codes=torch.where(within, program.codes, (program.codes + 7) % 64),
        lengths=program.lengths,
        codebook_size=64,
        model=program.model,
    )
    assert not torch.equal(other.codes, program.codes)
    assert torch.equal(tokenizer.interpret(other), tokenizer.interpret(program))
    assert other == program


def test_fields_come_and_go_in_the_teachers_scale(make_tokenizer, images, tiny_teacher):
    small, large = (
        make_tokenizer(teacher=TeacherConfig(name="random:tiny", width=192, scale=scale))
        for scale in (0.5, 2.0)
    )
    large.load_state_dict(small.state_dict())
    teacher_field = tiny_teacher(images[:2])
    torch.testing.assert_close(small.field(images[:2]), teacher_field, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(large.field(images[:2]), teacher_field, atol=1e-4, rtol=1e-4)
    program = Program(codes=torch.arange(K)[None], lengths=torch.tensor([K]), codebook_size=64)
    torch.testing.assert_close(4 * large.interpret(program), small.interpret(program))


# Lengths on demand.


def test_a_field_that_is_not_finite_is_refused(make_tokenizer, images):
    tokenizer = make_tokenizer()
    whole = copy.deepcopy(tokenizer.teacher)
    whole.patch_tokens = lambda backbone, pixels: torch.full((len(pixels), 16, 192), torch.inf)
    with pytest.raises(ModelError, match=r"not finite.*bf16"):
        Tokenizer(tokenizer.config, teacher=whole).encode(images)


@pytest.mark.parametrize(
    ("head", "channels", "value"),
    [
        (LengthHeadConfig(fixed=5), slice(None), torch.nan),
        (LengthHeadConfig(hidden=()), slice(3, 4), torch.inf),  # a sigmoid of infinity is finite
    ],
)
def test_a_field_that_is_not_finite_is_refused_whatever_the_length_head(
    make_tokenizer, images, head, channels, value
):
    tokenizer = make_tokenizer()
    teacher = copy.deepcopy(tokenizer.teacher)

    def broken(backbone, pixels):
        field = torch.zeros(len(pixels), 16, 192)
        field[-1, 7, channels] = value
        return field

    teacher.patch_tokens = broken
    config = replace(tokenizer.config, length_head=head)
    with pytest.raises(ModelError, match="field is not finite"):
        Tokenizer(config, teacher=teacher).encode(images)


def test_a_forced_length_is_obeyed_and_keeps_the_codes(tokenizer, images, program):
    for length in (1, 5, K, np.int64(7)):
        forced = tokenizer.encode(images, length=length)
        assert forced.lengths.tolist() == [length] * 6
        assert torch.equal(forced.codes, program.codes)
    assert tokenizer.encode(images, length="max").lengths.tolist() == [K] * 6
    each = torch.tensor([1, 2, 3, 4, 5, 12])
    assert torch.equal(tokenizer.encode(images, length=each).lengths, each)


def test_a_mean_length_is_met_over_the_batch(tokenizer, images, program):
    for mean in (1, 4.5, 8, 12):
        rated = tokenizer.encode(images, mean_length=mean)
        assert int(rated.lengths.sum()) == round(6 * mean)
        assert torch.equal(rated.codes, program.codes)
    order = tokenizer(images).predicted.argsort()
    assert (tokenizer.encode(images, mean_length=6).lengths[order].diff() >= 0).all()


def test_a_tolerance_gives_the_shortest_length_that_is_good_enough(tokenizer, images):
    images = images[:2]
    target = tokenizer.field(images)
    full = tokenizer.encode(images, length="max")
    errors = torch.stack(
        [
            1
            - torch.nn.functional.cosine_similarity(
                tokenizer.interpret(full.truncate(length)), target, dim=-1
            ).mean(dim=1)
            for length in range(1, K + 1)
        ],
        dim=1,
    )
    before = None
    for tolerance in (0.0, 0.02, 0.1, 2.0):
        lengths = tokenizer.encode(images, length="search", tolerance=tolerance).lengths
        for row, length in enumerate(lengths.tolist()):
            allowed = errors[row].min() + tolerance
            assert errors[row, length - 1] <= allowed + 1e-5
            assert (errors[row, : length - 1] > allowed - 1e-5).all()
        assert before is None or (lengths <= before).all()
        before = lengths
    assert before.tolist() == [1, 1]


# Refusals, each with what is wrong and what to do.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, r"length of 0 is outside \[1, 12\]. Give a length from 1 to 12"),
        ({"length": K + 1}, r"length of 13 is outside \[1, 12\]"),
        ({"length": np.int64(K + 1)}, r"length of 13 is outside \[1, 12\]"),
        ({"length": -1}, r"length of -1 is outside"),
        ({"length": torch.tensor([0, 1, 1, 1, 1, 1])}, r"length of 0 is outside"),
        ({"length": torch.tensor([13, 1, 1, 1, 1, 1])}, r"length of 13 is outside"),
        ({"length": torch.tensor([1, 2])}, r"lengths .*\(2,\).* one length per program"),
        ({"length": torch.full((6,), 2.5)}, r"2.5 was given as a float. Give a whole number"),
        ({"length": 2.5}, r"2.5 was given as a float. Give a whole number"),
        ({"length": "long"}, r"length is 'long'.*\"max\""),
        ({"mean_length": 0.5}, r"mean length of 0.5 is outside \[1, 12\]. Give"),
        ({"mean_length": 13}, r"mean length of 13 is outside \[1, 12\]"),
        ({"length": "search", "tolerance": -0.1}, r"tolerance of -0.1.*Give"),
        ({"length": "search", "tolerance": float("nan")}, r"tolerance of nan.*Give"),
        ({"tolerance": 0.1}, r"tolerance of 0.1 was given without a search.*length=\"search\""),
        ({"quality": 0}, r"quality of 0 is outside \(0, 1\). Give a cosine similarity"),
        ({"quality": 1.0}, r"quality of 1.0 is outside"),
        ({"quality": float("nan")}, r"quality of nan is outside"),
        ({"quality": 0.9, "confidence": 0.2}, r"confidence of 0.2 is outside \[0.5, 0.99\]"),
        ({"quality": 0.9, "length": 3}, r"length and quality were given together"),
        ({"quality": 0.9, "mean_length": 3}, r"quality and mean_length were given together"),
        ({"verify": True, "length": 3}, r"verify was given together with length. Give verify"),
        ({"confidence": 0.8, "mean_length": 3}, r"confidence was given together with mean_length"),
        ({"verify": True, "confidence": 0.8}, r"verify and confidence.*Leave confidence out"),
        ({"length": 3, "mean_length": 4}, r"given together. Give at most one"),
        ({"length": 3, "tolerance": 0.1}, r"without a search"),
        ({"length": None, "quality": "a"}, r"quality is 'a'. Give a number"),
        ({"mean_length": [3]}, r"mean_length is \[3\]. Give a number"),
        ({"length": object()}, r"<object .* is not a length .*Give a whole number"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(tokenizer, images, settings, message):
    with pytest.raises(ProgramError, match=message):
        tokenizer.encode(images, **settings)


def test_nonsense_is_refused_before_the_work(tokenizer):
    for settings in ({"length": K + 1}, {"mean_length": 0}, {"quality": 1}):
        with pytest.raises(ProgramError):
            tokenizer.encode("an image that is never opened.png", **settings)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((3, 64, 64), torch.nan), r"NaN.*Clean"),
        (torch.full((2, 3, 64, 64), torch.inf), r"NaN or infinity"),
        (torch.rand(3, 64, 64) * 255, r"from .* to .*divide by 255"),
        (torch.rand(3, 64, 64) - 0.5, r"undo a mean and std"),
        (torch.zeros(3, 64, 64, dtype=torch.int64), r"int64.*Give uint8"),
        (torch.zeros(64, 64), r"\(64, 64\).*Give it as \(3, H, W\)"),
        (torch.zeros(64, 64, 3), r"\(64, 64, 3\) is not an RGB image"),
        (torch.zeros(2, 4, 64, 64), r"\(2, 4, 64, 64\).*Give it as \(B, 3, H, W\)"),
        (torch.zeros(0, 3, 64, 64), r"no pixels"),
        (torch.zeros(1, 2, 3, 64, 64), r"is not an RGB image"),
        (np.zeros((3, 64, 64), np.uint8), r"Give it as \(H, W, 3\)"),
        ([], r"no images"),
        ([None], r"NoneType is not an image. Give paths"),
        ("nowhere.png", r"nowhere.png. Check the path"),
        ([torch.zeros(3, 64, 64, dtype=torch.uint8), b""], r"empty"),
    ],
)
def test_what_is_not_an_image_is_refused(tokenizer, images, message):
    with pytest.raises(ImageError, match=message):
        tokenizer.encode(images)


def test_a_program_of_another_model_is_refused(tokenizer, make_tokenizer, images):
    foreign = make_tokenizer(seed=1).encode(images[:1])
    with pytest.raises(ProgramError, match=r"written by model .* Interpret it with the model"):
        tokenizer.interpret(foreign)


@pytest.mark.parametrize(
    ("codes", "codebook_size", "message"),
    [
        (K, 128, r"128 codes, this model's 64. Interpret it with"),
        (K + 1, 64, r"room for 13 codes, this model reads 12"),
    ],
)
def test_a_program_of_another_shape_is_refused(tokenizer, codes, codebook_size, message):
    program = Program(
        codes=torch.zeros(1, codes, dtype=torch.int64),
        lengths=torch.tensor([1]),
        codebook_size=codebook_size,
    )
    with pytest.raises(ProgramError, match=message):
        tokenizer.interpret(program)


def test_a_program_of_unknown_origin_is_read(tokenizer):
    program = Program(codes=torch.tensor([[1, 2]]), lengths=torch.tensor([2]), codebook_size=64)
    assert tokenizer.interpret(program).shape == (1, 16, 192)


def test_decode_refuses_what_it_cannot_show(tokenizer, make_tokenizer):
    with pytest.raises(ModelError, match=r"no pixel decoder. Train one with `strop train-decoder"):
        make_tokenizer(decoder=None).decode(torch.zeros(1, 16, 192))
    for shape in [(1, 15, 192), (1, 16, 191), (16, 192), (1, 4, 4, 192)]:
        with pytest.raises(ModelError, match=r"does not fit this model. Give \(B, 16, 192\)"):
            tokenizer.decode(torch.zeros(shape))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": 100}, r"image_size is 100. Give a multiple of 16"),
        ({"image_size": 0}, r"image_size is 0"),
        ({"max_length": 0}, r"max_length is 0. Give a number that is above 0"),
        ({"generator": {"width": 30, "heads": 4}}, r"width .*30.* heads"),
        ({"generator": {"depth": 0}}, r"generator.depth is 0"),
        ({"interpreter": {"width": 30, "heads": 4}}, r"width .*30.* heads"),
        ({"quantizer": {"codes": 0}}, r"quantizer.codes is 0"),
        ({"quantizer": {"codes": 1}}, r"quantizer.codes is 1. Give a number that is at least 2"),
        ({"quantizer": {"decay": 1.5}}, r"quantizer.decay is 1.5"),
        ({"teacher": {"scale": 0.0}}, r"teacher.scale is 0"),
        ({"teacher": {"width": -1}}, r"teacher.width is -1"),
    ],
)
def test_configs_that_make_no_sense_are_refused(values, message):
    teacher = {"name": "random:tiny", "width": 192} | values.get("teacher", {})
    with pytest.raises(ConfigError, match=message):
        from_dict(TokenizerConfig, {**values, "teacher": teacher})


def test_a_teacher_of_another_width_is_refused(make_tokenizer):
    with pytest.raises(ConfigError, match=r"fields of width 192, the model expects 100. Set"):
        make_tokenizer(teacher=TeacherConfig(name="random:tiny", width=100))


# The teacher is there, and is no part of the model.


def test_the_teacher_is_neither_saved_nor_trained(tokenizer):
    assert not any("teacher" in name for name, _ in tokenizer.named_parameters())
    assert not any("teacher" in name for name in tokenizer.state_dict())
    assert not any("teacher" in name for name, _ in tokenizer.named_modules())


def test_the_teacher_follows_the_model_and_is_loaded_when_needed(tokenizer):
    lazy = Tokenizer(tokenizer.config)
    assert lazy.__dict__["_teacher"] is None
    lazy.interpret(Program(codes=torch.tensor([[1]]), lengths=torch.tensor([1]), codebook_size=64))
    assert lazy.__dict__["_teacher"] is None
    moved = copy.deepcopy(tokenizer).to("meta")
    assert moved.teacher.mean.is_meta


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_in_fp32_agrees_with_the_cpu(make_tokenizer, images, program):
    tokenizer = make_tokenizer().to("cuda")
    tokenizer.precision = "fp32"
    on_gpu = tokenizer.encode(images)
    assert (on_gpu.codes.cpu() == program.codes).float().mean() >= 0.99
    for edited in (on_gpu.erase(0), on_gpu[torch.tensor([1, 0], device="cuda")]):
        tokenizer.interpret(edited.with_lengths(K))


def test_a_program_is_interpreted_before_it_is_decoded(tokenizer, program):
    assert torch.equal(tokenizer.decode(program), tokenizer.decode(tokenizer.interpret(program)))


def test_embeddings_are_what_the_interpreter_reads(tokenizer, program):
    embeddings, active = tokenizer.embed(program.erase(0))
    longest = int(program.lengths.max())
    assert embeddings.shape == (len(program), longest, tokenizer.config.interpreter.width)
    assert torch.equal(active, program.erase(0).active[:, :longest])
    heard = []
    hook = tokenizer.interpreter.layers[0].register_forward_pre_hook(
        lambda layer, inputs: heard.append(inputs[1])
    )
    tokenizer.interpret(program)
    hook.remove()
    torch.testing.assert_close(heard[0], embeddings)
    assert tokenizer.embed(program[0])[0].shape[:2] == (1, len(program[0]))


def pickled(tokenizer):
    return pickle.loads(pickle.dumps(tokenizer))  # noqa: S301


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
def test_a_tokenizer_pickles_after_its_teacher_was_loaded(tokenizer, images, copied):
    loaded = Tokenizer(tokenizer.config)
    loaded.load_state_dict(tokenizer.state_dict())
    expected = loaded.eval().encode(images)
    again = copied(loaded)
    assert again.__dict__["_teacher"] is None
    assert again.teacher_digest == loaded.teacher.digest
    assert again.encode(images) == expected


class Encoded(torch.utils.data.Dataset):
    """Images that worker processes encode."""

    def __init__(self, tokenizer, images):
        self.tokenizer, self.images = tokenizer, images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.tokenizer.encode(self.images[index], length="max").codes[0]


@pytest.mark.slow
def test_a_tokenizer_works_in_spawned_workers(tokenizer, images):
    loaded = Tokenizer(tokenizer.config)
    loaded.load_state_dict(tokenizer.state_dict())
    codes = loaded.eval().encode(images, length="max").codes
    loader = torch.utils.data.DataLoader(
        Encoded(loaded, images), batch_size=3, num_workers=1, multiprocessing_context="spawn"
    )
    assert torch.equal(torch.cat(list(loader)), codes)


def test_other_types_than_fields_and_programs_are_refused(tokenizer, program):
    with pytest.raises(ModelError, match=r"A list is not a field\. Give a program"):
        tokenizer.decode([program])
    with pytest.raises(ProgramError, match="A Tensor is not a program"):
        tokenizer.interpret(program.codes)
    with pytest.raises(ModelError, match=r"\(2, 3, 64, 64\) does not fit this model"):
        tokenizer.analyse_field(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
    with pytest.raises(ModelError, match="A NoneType is not a field"):
        tokenizer.analyse_field(None)


def test_compiling_on_a_cpu_returns_at_once(tokenizer, images, program):
    with pytest.warns(UserWarning, match="does nothing on a CPU. .*openvino"):
        tokenizer.compile(batch=6)
    assert tokenizer._compiled_call_impl is None
    assert torch.equal(tokenizer.encode(images).codes, program.codes)


def test_an_unknown_precision_is_refused(make_tokenizer):
    tokenizer = make_tokenizer()
    with pytest.raises(ConfigError, match=r"Give one of .*, fp32, fp16, bf16"):
        tokenizer.precision = "fp8"
    assert tokenizer.precision is None
