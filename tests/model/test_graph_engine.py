"""The engine that pads and replays. On a CPU, a capture calls the function again and overwrites."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from strop.errors import ModelError
from strop.model.graph_engine import GraphEngine, batch_sizes, use_graphs
from strop.model.model_engine import ModelEngine
from strop.recorded import ATTEMPTS, WARM_STEPS

SIZES = (1, 4)


class Overwriting:
    """A capture for the CPU: like a CUDA graph, a replay overwrites the result of the first."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.captures, self.replays = failures, 0, 0

    def __call__(self, function: Callable[[], Any], pool: object | None) -> Any:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("operation failed due to a previous error during capture")
        self.captures += 1
        result = function()

        def replay() -> None:
            self.replays += 1
            for name, value in function().items():
                result[name].copy_(value)

        return replay, result, object()


@pytest.fixture
def capture() -> Overwriting:
    return Overwriting()


@pytest.fixture
def engine(tokenizer, capture) -> GraphEngine:
    engine = GraphEngine(SIZES, capture=capture)
    engine.prepare(tokenizer)
    return engine


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, (1,)), (4, (1, 4)), (8, (1, 8)), (32, (1, 8, 32)), (200, (1, 8, 32, 128, 200))],
)
def test_sizes_are_few(largest, sizes):
    assert batch_sizes(largest) == sizes


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_a_padded_batch_gives_what_the_plain_one_gives(engine, tokenizer, images, count):
    batch = images[:count]
    found, expected = (each.encode(tokenizer, batch) for each in (engine, ModelEngine()))
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(found.lengths, expected.lengths)
    for name, value in expected.as_dict().items():
        torch.testing.assert_close(getattr(found, name), value, atol=1e-5, rtol=1e-4)
    active = torch.arange(12) < expected.lengths[:, None]
    width = int(expected.lengths.max())
    for codes, mask in (
        (expected.codes, active),
        (expected.codes[:, :width], active[:, :width]),
        (expected.codes[:, :3], torch.tensor([True, False, True]).expand(count, 3)),
    ):
        fields = [each.interpret(tokenizer, codes, mask) for each in (engine, ModelEngine())]
        torch.testing.assert_close(*fields, atol=1e-5, rtol=1e-4)
    pixels = [each.decode(tokenizer, expected.field) for each in (engine, ModelEngine())]
    torch.testing.assert_close(*pixels, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_nothing_is_recorded_after_the_preparation(engine, capture, tokenizer, images):
    assert capture.captures == 3 * len(SIZES)
    for count in range(1, 7):
        encoding = engine.encode(tokenizer, images[:count])
        for width in (1, 5, 12):
            mask = torch.ones(count, width, dtype=torch.bool)
            engine.interpret(tokenizer, encoding.codes[:, :width], mask)
    assert capture.captures == 3 * len(SIZES)
    assert capture.replays > 20


def test_a_tokenizer_uses_its_engine(make_tokenizer, engine, images):
    plain, replayed = make_tokenizer(), make_tokenizer()
    replayed.engine = GraphEngine(SIZES, capture=Overwriting())
    replayed.engine.prepare(replayed)
    programs = [each.encode(images, quality=None) for each in (plain, replayed)]
    assert torch.equal(programs[0].codes, programs[1].codes)
    assert torch.equal(programs[0].lengths, programs[1].lengths)
    for verb in ("interpret", "decode"):
        results = [getattr(each, verb)(programs[0]) for each in (plain, replayed)]
        torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


def test_rounded_weights_give_what_autocast_gives_and_follow_the_exact(make_tokenizer, images):
    plain, replayed = make_tokenizer(), make_tokenizer()
    for each in (plain, replayed):
        each.precision = "bf16"
    replayed.engine = GraphEngine(SIZES, capture=Overwriting())
    replayed.engine.prepare(replayed)
    before = plain.identity
    for _ in range(2):
        programs = [each.encode(images[:1]) for each in (plain, replayed)]
        assert torch.equal(programs[0].codes, programs[1].codes)
        fields = [each.interpret(programs[0]) for each in (plain, replayed)]
        assert torch.equal(*fields)
        assert plain.identity == replayed.identity
        assert all(weight.dtype == torch.float32 for weight in replayed.parameters())
        with torch.no_grad():
            for each in (plain, replayed):
                each.generator.project.weight[:, ::2].mul_(-2)
                next(each.interpreter.parameters()).mul_(1.5)
                each.interpreter.layers[0].q.weight.mul_(-1.5)
    assert plain.identity != before


@torch.no_grad()
def test_threads_give_what_one_gives(engine, tokenizer, images):
    expected = [engine.encode(tokenizer, images[row : row + 1]).codes for row in range(6)]
    wrong: list[int] = []

    def work(seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():  # of each thread
            for row in torch.randint(0, 6, (12,), generator=random).tolist():
                found = engine.encode(tokenizer, images[row : row + 1]).codes
                if not torch.equal(found, expected[row]):
                    wrong.append(row)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def test_results_stay_when_others_are_computed(engine, tokenizer, images):
    first = engine.encode(tokenizer, images[:1])
    kept = first.field.clone()
    engine.encode(tokenizer, images[1:2])
    assert torch.equal(first.field, kept)


@torch.no_grad()
def test_a_failed_capture_is_tried_again(tokenizer, images):
    capture = Overwriting(failures=ATTEMPTS - 1)
    engine = GraphEngine((1,), capture=capture)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(WARM_STEPS + 2):
            found = engine.encode(tokenizer, images[:1])
    assert capture.captures == 1
    assert torch.equal(found.codes, tokenizer(images[:1]).codes)


@torch.no_grad()
def test_without_captures_calls_are_plain_after_one_warning(tokenizer, images):
    engine = GraphEngine((1,), capture=Overwriting(failures=1000))
    for _ in range(WARM_STEPS):
        engine.encode(tokenizer, images[:1])
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        engine.encode(tokenizer, images[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = engine.encode(tokenizer, images[:1])
    assert torch.equal(found.codes, tokenizer(images[:1]).codes)


def test_too_little_memory_names_the_batch_to_try(make_tokenizer, images):
    class Small(ModelEngine):
        """A device with memory for two programs."""

        def interpret(self, tokenizer: Any, codes: Tensor, active: Tensor) -> Tensor:
            if len(codes) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().interpret(tokenizer, codes, active)

    tokenizer = make_tokenizer()
    program = tokenizer.encode(images)
    tokenizer.engine = Small()
    with pytest.raises(ModelError, match=r"batch of 6.*batch=3 \(--batch 3\)"):
        tokenizer.interpret(program)
    assert len(tokenizer.interpret(program, batch=2)) == 6


def test_a_model_on_the_cpu_never_asks_for_a_gpu(make_tokenizer, images, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("CUDA was initialised")

    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    tokenizer = make_tokenizer()
    use_graphs(tokenizer, 32)
    assert type(tokenizer.engine) is ModelEngine
    tokenizer.decode(tokenizer.encode(images))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
class TestOnGpu:
    """The same with CUDA graphs."""

    def test_compiled_programs_are_those_of_the_plain_model(self, make_tokenizer, images):
        plain, compiled = make_tokenizer().cuda(), make_tokenizer().cuda()
        compiled.compile(batch=4)
        for count in (1, 2, 4, 6):
            programs = [each.encode(images[:count], batch=4) for each in (plain, compiled)]
            assert (programs[0].codes == programs[1].codes).float().mean() > 0.98
            fields = [each.interpret(programs[0], batch=4) for each in (plain, compiled)]
            torch.testing.assert_close(*fields, atol=2e-2, rtol=2e-2)

    def test_threads_on_their_own_streams_give_what_one_gives(self, make_tokenizer, images):
        tokenizer = make_tokenizer().cuda()
        tokenizer.compile(batch=4)
        expected = [tokenizer.encode(images[row : row + 1]).codes for row in range(6)]
        wrong: list[int] = []

        def work() -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                for row in list(range(6)) * 20:
                    found = tokenizer.encode(images[row : row + 1]).codes
                    if not torch.equal(found, expected[row]):
                        wrong.append(row)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    def test_memory_is_bounded(self, make_tokenizer, images):
        tokenizer = make_tokenizer().cuda()
        tokenizer.compile(batch=4)
        torch.cuda.synchronize()
        before = torch.cuda.memory_reserved()
        for _ in range(20):
            for count in (1, 2, 4, 6):
                tokenizer.decode(tokenizer.encode(images[:count], batch=4), batch=4)
        assert torch.cuda.memory_reserved() <= before + 2**26
