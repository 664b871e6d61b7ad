"""Generate, quantize and interpret compile as whole graphs, once, whatever the lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from strop.model.interpreter import prefix_mask
from strop.model.tokenizer import Tokenizer

CALLS = 4


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def field(tokenizer: Tokenizer, images: Tensor) -> Tensor:
    return tokenizer._scaled_field(images)


def compiled(module: nn.Module, backend: str = "aot_eager"):
    return torch.compile(module, fullgraph=True, backend=backend)


def never_again():
    """From here on a recompilation is an error."""
    return torch.compiler.set_stance("fail_on_recompile")


def random_lengths(call: int) -> Tensor:
    return torch.randint(1, 13, (6,), generator=torch.Generator().manual_seed(call))


@torch.no_grad()
def test_generate_and_quantize_compile_whole(tokenizer, field):
    generate, quantize = compiled(tokenizer.generator), compiled(tokenizer.quantizer)
    quantize(generate(field))
    with never_again():
        for _ in range(CALLS):
            field = field.flip(0)
            raw = generate(field)
            torch.testing.assert_close(raw, tokenizer.generator(field), atol=1e-4, rtol=1e-4)
            assert torch.equal(quantize(raw).codes, tokenizer.quantizer(raw).codes)


@torch.no_grad()
def test_lengths_that_change_do_not_recompile(tokenizer, field):
    z_q = tokenizer.quantizer(tokenizer.generator(field)).z_q

    def read(z_q: Tensor, lengths: Tensor) -> Tensor:
        return tokenizer.interpreter(z_q, prefix_mask(lengths, z_q.shape[1]))

    whole = torch.compile(read, fullgraph=True, backend="aot_eager")
    whole(z_q, random_lengths(0))
    with never_again():
        for call in range(1, CALLS):
            lengths = random_lengths(call)
            torch.testing.assert_close(
                whole(z_q, lengths), read(z_q, lengths), atol=1e-4, rtol=1e-4
            )


@torch.no_grad()
def test_updates_of_the_codebook_compile_whole(make_tokenizer, field):
    ours, theirs = make_tokenizer().quantizer, make_tokenizer().quantizer
    z = ours(make_tokenizer().generator(field))

    update = torch.compile(ours.update, fullgraph=True, backend="aot_eager")
    update(z.z, z.codes, prefix_mask(random_lengths(0), 12))
    theirs.update(z.z, z.codes, prefix_mask(random_lengths(0), 12))
    with never_again():
        for call in range(1, CALLS):
            active = prefix_mask(random_lengths(call), 12)
            update(z.z, z.codes, active)
            theirs.update(z.z, z.codes, active)
    torch.testing.assert_close(ours.codebook, theirs.codebook)
    torch.testing.assert_close(ours.counts, theirs.counts)


@pytest.mark.slow
@torch.no_grad()
def test_the_default_compiler_makes_the_same_program(tokenizer, field):
    """Inductor, which writes C++ here, on the whole path from field to field."""

    def path(field: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        quantized = tokenizer.quantizer(tokenizer.generator(field))
        out = tokenizer.interpreter(quantized.z_q, prefix_mask(lengths, 12))
        return quantized.codes, out

    whole = torch.compile(path, fullgraph=True)
    whole(field, random_lengths(0))
    with never_again():
        for call in range(1, CALLS):
            lengths = random_lengths(call)
            codes, out = whole(field, lengths)
            expected_codes, expected = path(field, lengths)
            assert torch.equal(codes, expected_codes)
            torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-3)


def test_the_check_for_recompilation_can_fail(tokenizer, field):
    """Guards the tests above: a length given as a Python number recompiles, and is caught."""

    def cut(field: Tensor, length: int) -> Tensor:
        return field[:, :length].sum()

    whole = torch.compile(cut, fullgraph=True, backend="aot_eager", dynamic=False)
    whole(field, 3)
    with never_again(), pytest.raises(RuntimeError, match="recompile"):
        whole(field, 4)
