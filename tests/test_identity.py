"""Identities: a digest changes with every ingredient of its role, and with nothing else."""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import pytest
import torch

from strop.data.spec import open_dataset
from strop.errors import ProgramError, TeacherError
from strop.identity import (
    Identity,
    of_dataset,
    of_tensor,
    of_tensors,
)
from strop.images import save_image
from strop.legacy import fingerprints
from strop.model.checkpoint import load_folder
from strop.model.quantizer import QuantizerConfig
from strop.model.teacher import Teacher, TeacherConfig
from strop.model.tokenizer import Tokenizer, TokenizerConfig
from strop.program import Program

ROLES = ("codes", "fields", "lengths", "pictures")


def changed(before: Identity, after: Identity) -> set[str]:
    return {role for role in ROLES if getattr(before, role) != getattr(after, role)}


@pytest.fixture
def other_teacher(tiny_teacher) -> Teacher:
    """The same shape, other weights."""
    teacher = copy.deepcopy(tiny_teacher)
    teacher.__dict__.pop("digest", None)
    next(teacher.backbone.parameters()).data += 0.1
    return teacher


# Models.


@pytest.mark.parametrize(
    ("tensor", "roles"),
    [
        ("generator.queries", {"codes"}),
        ("quantizer.project.weight", {"codes"}),
        ("quantizer.codebook", {"codes", "fields"}),
        ("quantizer.counts", set()),
        ("quantizer.sums", set()),
        ("interpreter.prefix_positions", {"fields"}),
        ("interpreter.grid", {"fields"}),
        ("length_head.mlp.0.weight", {"lengths"}),
        ("decoder.", {"pictures"}),
    ],
)
def test_a_weight_changes_the_roles_that_it_can_affect(make_tokenizer, tensor, roles):
    tokenizer = make_tokenizer()
    before = tokenizer.identity
    state = tokenizer.state_dict()
    name = next(name for name in state if name.startswith(tensor))
    with torch.no_grad():
        state[name].view(-1)[0] += 1e-3
    assert changed(before, tokenizer.identity) == roles


@pytest.mark.parametrize(
    ("changes", "roles"),
    [
        ({"fit": "crop"}, {"codes", "lengths"}),
        ({"decoder": None}, {"pictures"}),
        ({"quantizer": QuantizerConfig(codes=64, code_width=8, decay=0.9)}, set()),
        ({"quantizer": QuantizerConfig(codes=64, code_width=8, centred=True)}, {"codes"}),
        ({"teacher": TeacherConfig(name="elsewhere/tiny", width=192, scale=0.4)}, set()),
        ({"teacher": TeacherConfig(name="random:tiny", width=192, scale=0.5)}, set(ROLES)),
    ],
)
def test_a_setting_changes_the_roles_that_it_can_affect(make_tokenizer, changes, roles):
    tokenizer = make_tokenizer()
    other = Tokenizer(replace(tokenizer.config, **changes), teacher=tokenizer.teacher)
    shared = {k: v for k, v in tokenizer.state_dict().items() if k in other.state_dict()}
    other.load_state_dict(shared, strict=False)
    assert changed(tokenizer.identity, other.identity) == roles


def test_the_teacher_changes_codes_and_lengths(make_tokenizer, other_teacher):
    tokenizer = make_tokenizer()
    other = Tokenizer(tokenizer.config, teacher=other_teacher)
    other.load_state_dict(tokenizer.state_dict())
    assert changed(tokenizer.identity, other.identity) == {"codes", "lengths"}


def test_the_preprocessing_is_part_of_the_teacher(tiny_teacher):
    other = copy.deepcopy(tiny_teacher)
    other.__dict__.pop("digest", None)
    other.mean += 0.01
    assert other.digest != tiny_teacher.digest


def test_equal_models_are_equal_after_every_way_of_copying(make_tokenizer, tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    assert make_tokenizer().identity == tokenizer.identity
    assert load_folder(tmp_path).identity == tokenizer.identity
    assert copy.deepcopy(tokenizer).identity == tokenizer.identity
    assert copy.deepcopy(tokenizer).to("cpu", torch.float32).identity == tokenizer.identity


def test_a_change_is_seen_however_it_is_made(make_tokenizer):
    tokenizer = make_tokenizer()
    identities = {tokenizer.identity.codes}
    with torch.no_grad():
        tokenizer.generator.queries.mul_(2)
        identities.add(tokenizer.identity.codes)
        tokenizer.generator.queries.data = tokenizer.generator.queries.data * 2
        identities.add(tokenizer.identity.codes)
        tokenizer.load_state_dict(make_tokenizer(seed=1).state_dict())
        identities.add(tokenizer.identity.codes)
        tokenizer.generator.queries.data.numpy()[:] = 0  # no version counter sees this
        tokenizer.train().eval()
        identities.add(tokenizer.identity.codes)
    assert len(identities) == 5


def test_unchanged_tensors_are_not_read_again(make_tokenizer, monkeypatch):
    tokenizer = make_tokenizer()
    first = tokenizer.identity
    monkeypatch.setattr("strop.identity.of_tensor", None)
    assert tokenizer.identity == first


def test_a_digest_is_of_type_shape_and_content():
    digests = {
        of_tensor(tensor)
        for tensor in (
            torch.zeros(4),
            torch.zeros(2, 2),
            torch.zeros(4, dtype=torch.int32),
            torch.ones(4),
            torch.ones(4, dtype=torch.bfloat16),
            torch.zeros(()),
            torch.zeros(0),
        )
    }
    assert len(digests) == 7
    strided = torch.arange(12.0).view(3, 4).T
    assert of_tensor(strided) == of_tensor(strided.contiguous())
    a, b = torch.zeros(2), torch.ones(2)
    assert of_tensors({"a": a, "b": b}) == of_tensors({"b": b, "a": a})
    assert of_tensors({"a": a, "b": b}) != of_tensors({"a": b, "b": a})


def test_inference_tensors_are_read_every_time(make_tokenizer):
    with torch.inference_mode():
        tokenizer = make_tokenizer()
        before = tokenizer.identity.codes
        tokenizer.quantizer.codebook += 1
        assert tokenizer.identity.codes != before


# Teachers.


def test_a_model_refuses_another_teacher_than_its_own(make_tokenizer, tmp_path, other_teacher):
    make_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=r"are not those that the model .* Restore the teacher"):
        load_folder(tmp_path)._adopt(other_teacher)


def test_a_model_that_knows_its_teacher_has_an_identity_without_loading_it(
    make_tokenizer, tmp_path
):
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.identity == tokenizer.identity
    assert loaded.__dict__["_teacher"] is None


# Programs.


def test_programs_are_accepted_where_the_teacher_is_not_known(
    make_tokenizer, images, other_teacher
):
    """A model of 0.1.0 does not know its teacher; interpreting does not load it."""
    tokenizer = make_tokenizer()
    program = tokenizer.encode(images[:1])
    unknown = Tokenizer(tokenizer.config)
    unknown.load_state_dict(tokenizer.state_dict())
    assert torch.equal(unknown.eval().interpret(program), tokenizer.interpret(program))
    assert unknown.__dict__["_teacher"] is None
    unknown._adopt(other_teacher)
    with pytest.raises(ProgramError, match="written by model"):
        unknown.interpret(program)


def test_programs_of_0_1_0_are_accepted_by_their_fingerprint(make_tokenizer):
    tokenizer = make_tokenizer()
    for old in fingerprints(tokenizer.config, tokenizer.quantizer.codebook):
        program = Program(
            codes=torch.tensor([[1, 2]]), lengths=torch.tensor([2]), codebook_size=64, model=old
        )
        assert tokenizer.interpret(program).shape == (1, 16, 192)
        with pytest.raises(ProgramError, match="written by model"):
            make_tokenizer(seed=1).interpret(program)


def test_a_bundled_model_reads_programs_that_0_1_0_wrote():
    tokenizer = Tokenizer.from_pretrained("scenes", device="cpu")
    program = Program(
        codes=torch.tensor([[1, 2]]),
        lengths=torch.tensor([2]),
        codebook_size=tokenizer.config.quantizer.codes,
        model="2c8ef6e0bd99",
    )
    assert tokenizer.interpret(program).isfinite().all()


def test_the_fingerprint_of_0_1_0_stays_what_it_was():
    tokenizer = Tokenizer(TokenizerConfig(teacher=TeacherConfig(name="random:tiny", width=192)))
    codebook = tokenizer.quantizer.codebook.zero_()
    assert "d153fdadccfb" in fingerprints(tokenizer.config, codebook)
    centred = replace(tokenizer.config, quantizer=QuantizerConfig(centred=True))
    assert "ff1dde4d001d" in fingerprints(centred, codebook)


# Datasets.


@pytest.fixture
def folder(images, tmp_path):
    for number, image in enumerate(images[:3]):
        save_image(tmp_path / f"{number}.png", image)
    return tmp_path


def test_a_dataset_changes_with_its_files(folder, images):
    spec = f"folder:{folder}"
    found = [of_dataset(open_dataset(spec))]
    assert of_dataset(open_dataset(spec)) == found[0]
    found.append(of_dataset(open_dataset(f"{spec}?limit=2")))
    found.append(of_dataset(open_dataset(f"{spec}?skip=1")))
    os.utime(folder / "1.png", (1, 1))
    found.append(of_dataset(open_dataset(spec)))
    save_image(folder / "1.png", images[4])
    found.append(of_dataset(open_dataset(spec)))
    save_image(folder / "3.png", images[5])
    found.append(of_dataset(open_dataset(spec)))
    (folder / "0.png").rename(folder / "00.png")
    found.append(of_dataset(open_dataset(spec)))
    assert len(set(found)) == len(found)


def test_rendered_scenes_change_with_their_parameters():
    specs = ["n=4", "n=5", "n=4&seed=1", "n=4&size=64", "n=4&start=1", "n=4&by=color"]
    digests = [of_dataset(open_dataset(f"scenes:?{spec}")) for spec in specs]
    assert len(set(digests)) == len(specs)
    assert of_dataset(open_dataset("scenes:?n=4")) == digests[0]


def test_a_dataset_that_names_no_sources_is_sampled(folder, images):
    class Plain:
        name, classes, label_names = "plain", (), ()

        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return len(self.dataset)

        def __getitem__(self, index):
            return self.dataset[index]

    before = of_dataset(Plain(open_dataset(str(folder))))
    os.utime(folder / "1.png", (1, 1))
    assert of_dataset(Plain(open_dataset(str(folder)))) == before
    save_image(folder / "1.png", images[4])
    assert of_dataset(Plain(open_dataset(str(folder)))) != before
