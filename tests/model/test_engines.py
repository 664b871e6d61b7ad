"""Engines: the same programs by ONNX Runtime and OpenVINO, and an export that stands alone."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import strop
from strop.errors import ModelError
from strop.model.length_head import LengthHeadConfig, RateHead
from strop.model.model_engine import ENGINES, ModelEngine, make_engine
from strop.model.onnx import OnnxEngine, OpenVinoEngine, export_onnx
from strop.model.teacher import Teacher, TeacherConfig
from strop.model.tokenizer import Tokenizer
from strop.model.vit import ViT, parse_config
from strop.pool import Pool

# Learned positions for another grid, and patches of 14 pixels: the image is resized in the graph.
VIT = {
    "model_type": "dinov2",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 14,
    "image_size": 98,
    "mlp_ratio": 2,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu",
    "qkv_bias": True,
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Graphs are kept here."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


KEPT: list[dict[str, Tokenizer]] = []
"""Kept to the end of the process: freeing the runtimes earlier ended a process of many tests."""


@pytest.fixture(scope="module")
def small(make_tokenizer) -> Tokenizer:
    """A tokenizer with a rate head and a teacher of two layers."""
    config = parse_config(VIT)
    assert config is not None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vit = ViT(config)
        for parameter in vit.parameters():
            nn.init.normal_(parameter, std=0.3)
        mean = (0.5, 0.5, 0.5)
        teacher = Teacher(vit, lambda model, x: model(x), patch=14, width=32, mean=mean, std=mean)
        head = LengthHeadConfig(kind="rate", hidden=(16,), quality=0.5)
        shape = make_tokenizer().config
        described = TeacherConfig(name="none", width=32, scale=0.4)
        values = {name: getattr(shape, name) for name in shape.__dataclass_fields__}
        values |= {"teacher": described, "length_head": head}
        tokenizer = Tokenizer(type(shape)(**values), teacher=teacher).eval()
        for parameter in tokenizer.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=1 / parameter.shape[1] ** 0.5)
    assert isinstance(tokenizer.length_head, RateHead)
    return tokenizer


@pytest.fixture(scope="module")
def others(small) -> dict[str, Tokenizer]:
    """The same tokenizer by engine."""
    made = {}
    for name in ENGINES:
        made[name] = copy.deepcopy(small)
        made[name].engine = make_engine(name, made[name])
    KEPT.append(made)
    return made


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_an_engine_gives_the_same_as_torch(small, others, images, name):
    other = others[name]
    expected, found = small.analyse(images).as_dict(), other.analyse(images).as_dict()
    assert expected.keys() == found.keys()
    assert torch.equal(expected["codes"], found["codes"])
    for key, value in expected.items():
        assert found[key].dtype == value.dtype
        torch.testing.assert_close(found[key], value, atol=2e-3, rtol=2e-3)
    program, same = (each.encode(images) for each in (small, other))
    assert torch.equal(program.codes, same.codes)
    assert torch.equal(program.lengths, same.lengths)
    assert program.model == same.model
    torch.testing.assert_close(
        other.interpret(program), small.interpret(program), atol=1e-4, rtol=1e-4
    )
    assert torch.equal(other.field(images[:1]), other.analyse(images[:1]).field)
    torch.testing.assert_close(
        other.rate_curve(images).cosine, small.rate_curve(images).cosine, atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_lengths_and_erasures_are_honoured(small, others, images, name):
    program = small.encode(images)
    for changed in (program[:1], program[2:5], small.encode(images, length=1)):
        torch.testing.assert_close(
            others[name].interpret(changed), small.interpret(changed), atol=1e-4, rtol=1e-4
        )
    assert torch.equal(
        others[name].encode(images, verify=True).lengths, small.encode(images, verify=True).lengths
    )


def test_graphs_are_written_once(others, cache):
    folder = others["onnx"].engine.folder
    assert folder == others["openvino"].engine.folder
    assert folder.is_relative_to(cache)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    make_engine("onnx", others["torch"])
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_an_engine_can_be_pickled_and_works_after_a_fork(others, images):
    engine = pickle.loads(pickle.dumps(others["onnx"].engine))  # noqa: S301
    codes = engine.encode(others["onnx"], images).codes
    assert torch.equal(codes, others["onnx"].engine.encode(others["onnx"], images).codes)
    pool = Pool(lambda batch: engine.encode(others["onnx"], batch).codes.tolist(), workers=1)
    try:
        assert next(pool.map([images], 1)) == codes.tolist()
    finally:
        pool.close()


def test_training_goes_back_to_torch(others):
    tokenizer = copy.deepcopy(others["torch"])
    tokenizer.engine = others["onnx"].engine
    assert type(tokenizer.eval().engine) is OnnxEngine
    assert type(tokenizer.train().engine) is ModelEngine


def test_unknown_engines_are_refused(small):
    with pytest.raises(ModelError, match="Choose one of torch, onnx, openvino"):
        make_engine("tensorrt", small)


@pytest.mark.parametrize(("kind", "package"), [(OnnxEngine, "onnx"), (OpenVinoEngine, "openvino")])
def test_a_missing_package_is_named(small, monkeypatch, kind, package):
    monkeypatch.setitem(sys.modules, kind.packages[0], None)
    with pytest.raises(ModelError, match=rf"pip install 'strop\[{package}\]'"):
        kind(small)


def test_an_export_does_not_replace_a_model(small, tmp_path):
    small.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="Name another folder"):
        export_onnx(small, tmp_path)


def test_an_export_runs_with_onnx_runtime_and_numpy_alone(small, tmp_path):
    """The code of the README runs in an environment that has neither PyTorch nor strop."""
    folder = export_onnx(small, tmp_path / "export")
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "README.md", "encoder.onnx", "example.npz", "export.json", "interpreter.onnx"
    }  # fmt: skip
    readme = (folder / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert code
    checks = (
        "import importlib.util as u\nassert not u.find_spec('torch') and not u.find_spec('strop')"
    )
    result = subprocess.run(
        [bare_python(tmp_path / "bare"), "-I", "-c", f"{checks}\n{code[1]}"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    example = np.load(folder / "example.npz")
    assert str(example["codes"][0][: example["lengths"][0]].tolist()) in result.stdout
    with pytest.raises(strop.StropError):
        strop.load(folder)


def bare_python(folder: Path) -> Path:
    """The interpreter of a new environment with ONNX Runtime and NumPy only."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in ("numpy", "onnxruntime"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        for path in (package, package.parent / f"{name}.libs"):
            if path.exists():
                (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["onnx", "openvino"])
@pytest.mark.parametrize("model", ["photos", "scenes"])
def test_a_bundled_model_gives_the_same_programs(model, name):
    size = strop.load(model, device="cpu").config.image_size
    random = torch.Generator().manual_seed(1)
    coarse = torch.rand(8, 3, 12, 12, generator=random)
    images = nn.functional.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 1)
    plain, fast = (strop.load(model, engine=each) for each in ("torch", name))
    expected, found = plain.encode(images), fast.encode(images)
    assert torch.equal(expected.lengths, found.lengths)
    differ = expected.codes != found.codes
    assert differ.float().mean() < 0.005
    # Another order of sums may only choose between codes that are equally near up to rounding.
    z, codebook = plain.analyse(images).z, plain.quantizer.codebook
    nearness = [(z * codebook[each.codes]).sum(dim=-1) for each in (expected, found)]
    assert (nearness[0] - nearness[1])[differ].abs().lt(1e-4).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_engines_of_a_cpu_refuse_a_gpu(small):
    with pytest.raises(ModelError, match="runs on a CPU"):
        make_engine("onnx", copy.deepcopy(small).cuda())
