"""The reader on programs that spell their scenes, and its parts by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from spelled import spelled_pairs, subject_of

from code_transformer import NetworkConfig
from consensus import consensus
from reader import Options, curve_sizes, draw_curve, run
from reader_network import (
    Reader,
    cell_neighbours,
    named,
    places_of,
    scene_tensors,
    train_reader,
)
from scene_objects import SceneObject
from scene_pairs import ScenePairs
from scene_scores import naive_scene, score
from strop.errors import ConfigError, DataError

pytestmark = pytest.mark.slow

SMALL = NetworkConfig(width=48, depth=1, dropout=0.0)


@pytest.fixture(scope="session")
def reader() -> Reader:
    return train_reader(spelled_pairs(1500), SMALL, epochs=16)


def test_a_reader_learns_to_read_what_is_spelled(reader):
    test = spelled_pairs(100, seed=1)
    scores = score(reader.read(test.program), test.scenes).intervals()
    naive = score([naive_scene(test.scenes)] * 100, test.scenes).intervals()
    assert scores["count_error"].value < 0.05 < naive["count_error"].value
    assert scores["placed_accuracy"].value > 0.97 > 2 * naive["placed_accuracy"].value
    assert scores["position_mse"].value < 0.5 < 0.2 * naive["position_mse"].value


def test_reading_depends_on_active_codes_alone(reader):
    program = spelled_pairs(20, seed=2).program
    other = torch.where(program.active, program.codes, 7)
    changed = type(program)(
        codes=other, lengths=program.lengths, codebook_size=program.codebook_size
    )
    assert reader.read(program) == reader.read(program) == reader.read(changed)
    assert reader.read(program[0]) == reader.read(program[:1])


def test_readings_of_a_trained_reader_agree(reader):
    test = spelled_pairs(10, seed=3)
    for scene, readings in zip(test.scenes, reader.readings(test.program, samples=5), strict=True):
        assert len(readings) == 5
        assert all(len(reading) == len(scene) for reading in readings)
        right = [a.shape == b.shape for r in readings for a, b in zip(r, scene, strict=True)]
        assert np.mean(right) > 0.7


def test_training_is_a_function_of_the_seed():
    pairs = spelled_pairs(64)
    before = torch.random.get_rng_state()
    one, two, other = (train_reader(pairs, SMALL, epochs=2, seed=seed) for seed in (3, 3, 4))
    torch.testing.assert_close(one.state_dict(), two.state_dict(), atol=0, rtol=0)
    assert not torch.equal(one.start, other.start)
    assert torch.equal(before, torch.random.get_rng_state())


def test_scenes_as_tensors_come_back_within_half_a_cell():
    far = SceneObject("cube", "red", "large", "metal", -2.9, 2.9)
    near = SceneObject("sphere", "cyan", "small", "rubber", 3.0, -3.0)
    scenes = scene_tensors([(far, near), (far,)])
    assert scenes.count.tolist() == [2, 1]
    assert scenes.present.tolist() == [[True, True], [True, False]]
    places = places_of(scenes.cells).numpy()
    back = [named(w, p) for w, p in zip(scenes.words.numpy(), places, strict=True)]
    assert [each.words for each in back[0]] == [near.words, far.words], "nearest first"
    assert back[0][0][4:] == pytest.approx((2.875, -2.875))
    assert back[1][0][4:] == pytest.approx((-2.875, 2.875))
    with pytest.raises(DataError, match="11 objects"):
        scene_tensors([(far,) * 11])


def test_a_consensus_takes_majorities_and_medians_of_partners():
    # Two objects, read three times, in different orders; once with a wrong word.
    one, other = [0, 1, 0, 1], [2, 3, 1, 0]
    words = np.array([[one, other], [other, one], [[0, 7, 0, 1], other]])
    places = np.array([[[0, 0], [2, 2]], [[2, 1], [0.3, 0]], [[0, 0.3], [2, 0]]], float)
    found, at = consensus(words, places)
    order = np.argsort(at[:, 0])
    assert found[order].tolist() == [one, other]
    np.testing.assert_allclose(at[order], [[0, 0], [2, 1]])
    alone = consensus(words[:1], places[:1])
    assert alone[0].tolist() == words[0].tolist()


def test_a_consensus_of_random_readings_is_as_varied_as_they_are():
    random = np.random.default_rng(0)
    words = np.stack([random.integers(size, size=(24, 8)) for size in (3, 8, 2, 2)], axis=-1)
    found, at = consensus(words, random.uniform(-3, 3, (24, 8, 2)))
    assert len(set(map(tuple, found.tolist()))) == 8
    assert at.std() > 1


def test_the_target_of_a_cell_is_shared_with_its_neighbours():
    near = cell_neighbours()
    torch.testing.assert_close(near.sum(-1), torch.ones(24**2))
    middle = 12 * 24 + 12
    assert near[middle].argmax() == middle
    # One cell further is one standard deviation of the blur, along either axis.
    for neighbour in (middle + 1, middle - 24):
        assert near[middle, neighbour] / near[middle, middle] == pytest.approx(0.6065, abs=1e-3)


def test_the_learning_curve():
    assert curve_sizes(20_000, 4) == [312, 1250, 5000, 20_000]
    assert curve_sizes(100, 3) == [100]
    test = spelled_pairs(8)
    read = score(test.scenes, test.scenes)
    scores = {"naive": read, "reader, 10 pairs": read, "reader, 40 pairs": read}
    assert len(draw_curve([10, 40], scores).axes) == 4


def test_invalid_networks_and_epochs_are_refused():
    with pytest.raises(ConfigError, match="width 30"):
        NetworkConfig(width=30)
    with pytest.raises(ConfigError, match="0 epochs"):
        train_reader(spelled_pairs(4), SMALL, epochs=0)


def test_a_reader_needs_scenes():
    with pytest.raises(DataError, match="have no scenes"):
        train_reader(ScenePairs(spelled_pairs(4).program, ()), Options().network, epochs=1)


def test_the_reader_analysis_end_to_end(tokenizer):
    options = Options(epochs=1, curve=2, width=16, depth=1)
    findings = run(subject_of(tokenizer, spelled_pairs(200)), options)
    scores = findings.numbers["scores"]
    assert list(scores) == ["naive", "reader, 40 pairs", "reader, 160 pairs"]
    assert scores["naive"]["scenes"] == 40
    assert set(scores["naive"]["attributes"]) == {"shape", "color", "size", "material"}
    assert [table.rows[0][0] for table in findings.tables] == ["naive", "Naive baseline"]
    assert set(findings.figures) == {"curve", "scenes"}
