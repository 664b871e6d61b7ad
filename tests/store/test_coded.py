"""Entropy-coded files of a store."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
import torch
from typer.testing import CliRunner

import strop
from strop.analysis.prior import load_prior
from strop.analysis.prior_training import train_prior
from strop.analysis.program_coding import LANES
from strop.cli.store import app
from strop.errors import FormatError, ProgramError, StoreError
from strop.program import Program
from strop.store.coded import export_coded, read_coded
from strop.store.writer import Writer

from .programs import INFO, draw_program, rows


@pytest.fixture
def prior(tmp_path) -> str:
    path = tmp_path / "prior.safetensors"
    path.write_bytes(train_prior(draw_program(200, seed=9), epochs=1, width=4).to_bytes())
    return str(path)


@pytest.fixture
def path(tmp_path) -> str:
    path = str(tmp_path / "photos.lance")
    writer = Writer(path, INFO, {"caption": pa.string()})
    for seed in (0, 1):
        quality = pa.array([0.5 + seed / 4] * 40, pa.float32())
        part = rows(draw_program(40, seed), quality=quality, caption=pa.array(["ü"] * 40))
        writer.append(part)
    return path


def test_all_programs_come_back(path, prior, tmp_path):
    store, output = strop.open_store(path), tmp_path / "photos.strop"
    found = export_coded(store, output, prior=prior)
    program = read_coded(output, prior=prior)
    assert program == store[:]
    assert program.names == store[:].names
    assert program.quality.tolist() == [0.5] * 40 + [0.75] * 40
    assert found["programs"] == 80
    fixed = float(store[:].bits.sum()) / 8
    assert found["of_fixed_rate"] == pytest.approx(80 * found["bytes_per_image"] / fixed)
    ideal = float(store[:].entropy_bits(load_prior(prior)).sum()) / 8
    blocks = 2  # one for each fragment
    assert ideal - 1 < 80 * found["bytes_per_image"] < ideal + blocks * 4.2 * LANES


def test_another_prior_is_refused(path, prior, tmp_path):
    store, output = strop.open_store(path), tmp_path / "photos.strop"
    export_coded(store, output, prior=prior)
    other = tmp_path / "other.safetensors"
    other.write_bytes(train_prior(draw_program(200, seed=8), epochs=1, width=4).to_bytes())
    with pytest.raises(FormatError, match="another prior"):
        read_coded(output, prior=other)
    foreign = replace(draw_program(60), model="c-d")
    other.write_bytes(train_prior(foreign, epochs=1, width=4).to_bytes())
    with pytest.raises(ProgramError, match="of model"):
        export_coded(store, output, prior=other)


def test_damaged_files_and_wrong_names_are_refused(path, prior, tmp_path):
    store, output = strop.open_store(path), tmp_path / "photos.strop"
    with pytest.raises(StoreError, match="not an entropy-coded file"):
        export_coded(store, tmp_path / "photos.parquet", prior=prior)
    export_coded(store, output, prior=prior)
    content = output.read_bytes()
    for damaged in (content[:-20], content[:60] + b"xxxx" + content[64:], b"no file"):
        output.write_bytes(damaged)
        with pytest.raises(FormatError):
            read_coded(output, prior=prior)


def test_the_command_line_exports_and_expands(path, prior, tmp_path):
    coded, plain = tmp_path / "photos.strop", tmp_path / "photos.parquet"
    common = ["--prior", prior, "--json"]
    run = CliRunner().invoke(app, ["export", path, "-o", str(coded), "--entropy-coded", *common])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["bytes_per_image"] > 0
    run = CliRunner().invoke(app, ["export", str(coded), "-o", str(plain), *common])
    assert run.exit_code == 0, run.output
    assert Program.load(plain) == strop.open_store(path)[:]
    assert torch.equal(Program.load(plain).lengths, strop.open_store(path)[:].lengths)
