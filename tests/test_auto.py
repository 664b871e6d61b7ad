"""`transformers.AutoModel` and `AutoImageProcessor` load what strop saves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from strop.errors import ConfigError, ImageError, ModelError
from strop.images import save_image
from strop.model.tokenizer import Tokenizer

SCRIPT = """
{imports}
import pickle, torch
config = transformers.AutoConfig.from_pretrained({folder!r})
assert pickle.loads(pickle.dumps(config)).model == config.model
model = transformers.AutoModel.from_pretrained({folder!r}, dtype="bfloat16", device_map="cpu")
processor = transformers.AutoImageProcessor.from_pretrained({folder!r})
assert isinstance(model, strop.Tokenizer) and model.precision == "bf16"
model.precision = None
images = torch.arange(2 * 3 * 40 * 70).reshape(2, 3, 40, 70).mul(7).to(torch.uint8)
encoding = model(**processor(list(images), return_tensors="pt"))
program = strop.load({folder!r}, device="cpu").encode(images, length="max")
assert torch.equal(encoding.codes, program.codes)
pipeline = transformers.pipeline("image-feature-extraction", model={folder!r}, device="cpu")
assert pipeline.model.dtype == torch.float32
features = torch.tensor(pipeline({image!r}))
assert torch.allclose(features, pipeline.model.field({image!r}), atol=1e-5)
"""


@pytest.mark.parametrize(
    "imports",
    ["import strop, transformers", "import transformers; transformers.AutoModel; import strop"],
    ids=["strop first", "transformers first"],
)
def test_auto_classes_load_a_saved_model(tokenizer, images, tmp_path, imports):
    tokenizer.save_pretrained(tmp_path)
    save_image(tmp_path / "a.png", images[0])
    script = SCRIPT.format(imports=imports, folder=str(tmp_path), image=str(tmp_path / "a.png"))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_options_of_transformers_are_taken(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    half = Tokenizer.from_pretrained(tmp_path, torch_dtype=torch.float16, device_map="cpu")
    assert half.precision == "fp16"
    assert Tokenizer.from_pretrained(tmp_path, dtype="auto", device="cpu").precision is None
    with pytest.raises(ConfigError, match="float32, float16, bfloat16"):
        Tokenizer.from_pretrained(tmp_path, dtype="int8")
    with pytest.raises(ConfigError, match="There is no device"):
        Tokenizer.from_pretrained(tmp_path, device_map={"": 0})


@pytest.mark.parametrize(
    "cast",
    [
        lambda model: model.half(),
        lambda model: model.bfloat16(),
        lambda model: model.double(),
        lambda model: model.to(torch.float16),
        lambda model: torch.nn.Sequential(model).half(),
    ],
    ids=["half", "bfloat16", "double", "to", "in a parent"],
)
def test_casting_weights_is_refused(make_tokenizer, cast):
    tokenizer = make_tokenizer()
    with pytest.raises(ModelError, match=r"tok\.precision"):
        cast(tokenizer)
    assert all(p.dtype == torch.float32 for p in tokenizer.parameters())


def test_a_call_with_floats_is_refused(tokenizer, images):
    with pytest.raises(ImageError, match="encode"):
        tokenizer(images / 255)
    assert torch.equal(tokenizer(images).codes, tokenizer.encode(images / 255, length="max").codes)
