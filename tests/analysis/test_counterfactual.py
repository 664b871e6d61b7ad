"""Erasure maps: batched counterfactuals against erasing tokens one by one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import strop
from strop.errors import ProgramError
from strop.program import Program

K = 12


@pytest.fixture(scope="module")
def program(tokenizer, images) -> Program:
    return tokenizer.encode(images[:3], length=torch.tensor([K, 5, 2]))


def one_by_one(tokenizer, program: Program) -> torch.Tensor:
    maps = torch.zeros(len(program), program.capacity, 4, 4)
    complete = tokenizer.interpret(program)
    for row in range(len(program)):
        for k in range(int(program.lengths[row])):
            if program.active[row, k]:
                without = tokenizer.interpret(program[row].erase(k))[0]
                maps[row, k] = 1 - F.cosine_similarity(complete[row], without, dim=-1).view(4, 4)
    return maps


def test_maps_are_those_of_erasing_one_by_one(tokenizer, program):
    maps = strop.erasure(tokenizer, program)
    assert maps.shape == (3, K, 4, 4)
    torch.testing.assert_close(maps, one_by_one(tokenizer, program), atol=1e-5, rtol=0)
    assert maps[0].amax(dim=(1, 2)).min() > 1e-4, "every token of this model has an effect"


def test_maps_of_inactive_tokens_are_zero(tokenizer, program):
    maps = strop.erasure(tokenizer, program)
    within = torch.arange(K) < program.lengths[:, None]
    assert torch.count_nonzero(maps[~within]) == 0
    assert (maps[within].abs().amax(dim=(1, 2)) > 0).all()


def test_maps_of_holes_are_zero_and_the_others_are_measured_without_them(tokenizer, program):
    erased = program.erase(1)
    maps = strop.erasure(tokenizer, erased[:2])
    assert torch.count_nonzero(maps[:, 1]) == 0
    torch.testing.assert_close(maps, one_by_one(tokenizer, erased[:2]), atol=1e-5, rtol=0)


def test_the_only_remaining_token_has_no_map(tokenizer, program):
    maps = strop.erasure(tokenizer, program.truncate(torch.tensor([1, 2, 2])).erase(1))
    assert maps[:, 0].isnan().all()
    assert torch.count_nonzero(maps[:, 1:]) == 0


def test_maps_do_not_depend_on_the_batch_size(tokenizer, program):
    torch.testing.assert_close(
        strop.erasure(tokenizer, program, batch=4),
        strop.erasure(tokenizer, program),
        atol=1e-5,
        rtol=0,
    )


def test_each_chunk_is_interpreted_at_once(tokenizer, program, monkeypatch):
    """19 tokens in chunks of 8 take 3 passes, and the unedited programs one more."""
    sizes = []
    interpret = tokenizer.interpreter.forward
    monkeypatch.setattr(
        tokenizer.interpreter,
        "forward",
        lambda z_q, active: sizes.append(len(z_q)) or interpret(z_q, active),
    )
    strop.erasure(tokenizer, program, batch=8)
    assert sizes == [3, 8, 8, 3]
    sizes.clear()
    strop.erasure(tokenizer, program[0])
    assert sizes == [1, K], "K edited programs together, and the unedited one"
    assert sum(sizes) <= 1.2 * K


def test_other_edits_use_those_of_programs(tokenizer, program):
    complete = tokenizer.interpret(program[[1]])
    for edit in ("delete", "replace"):
        maps = strop.erasure(tokenizer, program[[1]], edit=edit)
        assert (maps[0, :5].flatten(1).amax(dim=1) > 0).all()
        assert not maps[0, 5:].any()
    deleted = tokenizer.interpret(program[[1]].delete(2))
    expected = 1 - F.cosine_similarity(complete, deleted, dim=-1)
    found = strop.erasure(tokenizer, program[[1]], edit="delete")[0, 2].flatten()
    torch.testing.assert_close(found, expected[0], atol=1e-5, rtol=0)
    first, again, other = (
        strop.erasure(tokenizer, program[[1]], edit="replace", seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_single_program_is_a_batch_of_one(tokenizer, program):
    maps = strop.erasure(tokenizer, program[1])
    assert maps.shape == (1, 5, 4, 4)
    torch.testing.assert_close(maps[0], strop.erasure(tokenizer, program)[1, :5])


def test_names_do_not_change_maps(tokenizer, program):
    named = program.named(("a", "b", "c"))
    torch.testing.assert_close(
        strop.erasure(tokenizer, named), strop.erasure(tokenizer, program), equal_nan=True
    )


def test_a_program_of_another_model_is_refused(tokenizer, make_tokenizer, images):
    foreign = make_tokenizer(seed=1).encode(images[:1])
    with pytest.raises(ProgramError, match=r"written by model"):
        strop.erasure(tokenizer, foreign)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_maps_on_a_gpu_are_those_of_the_cpu(make_tokenizer, tokenizer, program):
    on_gpu = make_tokenizer().to("cuda")
    on_gpu.precision = "fp32"
    maps = strop.erasure(on_gpu, program).cpu()
    torch.testing.assert_close(maps, strop.erasure(tokenizer, program), atol=1e-3, rtol=0)
