"""Usage, purity, positions and pairs of codes, where the meaning of the codes is known."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from planted import CLASSES, CODES, altered

from strop.analysis import code_usage as codes


@pytest.fixture(scope="module")
def found(planted):
    return codes.run(planted, codes.Options(draws=49, pages=5))


def test_every_code_is_pure(found):
    assert found.numbers["purity"]["value"] == 1
    assert found.numbers["purity"]["shuffled"] < 0.5
    assert found.numbers["purity"]["p"] == pytest.approx(0.02)
    for entry in found.numbers["codes"]:
        assert entry["best_class"] == f"class {entry['code'] % CLASSES}"
        assert entry["purity"] == 1
        assert entry["class_entropy"] == 0


def test_usage_is_counted(found, planted):
    program = planted.program
    usage = found.numbers["usage"]
    counts = np.bincount(program.codes[program.active], minlength=CODES)
    assert usage["tokens"] == int(program.lengths.sum())
    assert usage["active_codes"] == (counts > 0).sum()
    expected = np.exp(scipy.stats.entropy(counts))
    assert usage["effective_vocabulary"] == pytest.approx(expected)
    assert [entry["count"] for entry in found.numbers["codes"]] == sorted(counts)[::-1]


def test_p_of_positions_is_uniform_for_random_codes(planted):
    program = planted.program
    held, at = program.codes[program.active].numpy(), program.active.nonzero()[:, 1].numpy()

    def table(codes_held):
        return codes.position_table(codes_held, at, (program.codebook_size, program.capacity))

    ps = []
    for trial in range(80):
        permuted = np.random.default_rng(trial).permutation(held)
        ps.append(
            codes.against_null(
                codes.mutual_information,
                table(permuted),
                lambda generator, permuted=permuted: table(generator.permutation(permuted)),
                codes.Options(draws=29, seed=trial + 1000),
            )["p"]
        )
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_pairs_are_ranked_by_normalised_pmi():
    together = np.array([[10, 10, 5], [10, 10, 5], [5, 5, 10]])
    always, by_chance = codes.associated_pairs(together, 20)[:2]
    assert always["codes"] == [0, 1]
    assert always["npmi"] == pytest.approx(1)
    assert by_chance["npmi"] == pytest.approx(0)
    assert by_chance["expected"] == pytest.approx(5)


def test_the_dictionary_is_a_page_with_its_pictures_beside_it(found):
    page = found.files["dictionary/index.html"]
    pictures = re.findall(r'src="([^"]+)"', page)
    assert len(pictures) == 5
    for picture in pictures:
        assert found.files[f"dictionary/{picture}"][:3] == b"\xff\xd8\xff", "a JPEG"
    assert "http" not in page, "nothing is fetched"


def test_names_of_classes_are_escaped(planted):
    names = ("background", *("<script>" for _ in range(CLASSES)))
    odd = altered(planted)
    odd.dataset = SimpleNamespace(classes=names, label_names=())
    found = codes.run(odd, codes.Options(draws=1, pages=1))
    page = found.files["dictionary/index.html"]
    assert "<script>" not in page.split("<main>")[1].split("</main>")[0]
