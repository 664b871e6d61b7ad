"""The vocabulary of the planted model: what its codes stand for is known."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from planted import CLASSES, CODES

from strop.structure import codes


@pytest.fixture(scope="module")
def found(planted, planted_encoded, tmp_path_factory):
    options = codes.Options(draws=49, pages=5, examples=3)
    job = codes.Job(tmp_path_factory.mktemp("codes"))
    return codes.run(planted, planted_encoded, options, job)


def test_every_code_is_pure(found):
    assert found.numbers["purity"]["value"] == 1
    assert found.numbers["purity"]["shuffled"] < 0.5
    assert found.numbers["purity"]["p"] == pytest.approx(0.02)
    for entry in found.numbers["codes"]:
        assert entry["best_class"] == f"class {entry['code'] % CLASSES}"
        assert entry["purity"] == 1
        assert entry["class_entropy"] == 0


def test_usage_is_counted(found, planted_encoded):
    program = planted_encoded.program
    usage = found.numbers["usage"]
    counts = np.bincount(program.codes[program.active], minlength=CODES)
    assert usage["tokens"] == int(program.lengths.sum())
    assert usage["active_codes"] == (counts > 0).sum()
    expected = np.exp(scipy.stats.entropy(counts))
    assert usage["effective_vocabulary"] == pytest.approx(expected)
    assert [entry["count"] for entry in found.numbers["codes"]] == sorted(counts)[::-1]


def test_codes_drawn_anywhere_have_no_place(planted_encoded):
    """Codes of the planted images are drawn at random, so p for their position is uniform."""
    program = planted_encoded.program
    ps = []
    for trial in range(80):
        random = np.random.default_rng(trial)
        mixed = codes._mixed(program, random)
        ps.append(
            codes._against(
                codes.mutual_information,
                lambda generator, mixed=mixed: codes.position_table(codes._mixed(mixed, generator)),
                codes.position_table(mixed),
                codes.Options(draws=29, seed=trial + 1000),
            )["p"]
        )
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01


def test_company_is_normalised_pointwise_information():
    together = np.array([[10, 10, 5], [10, 10, 5], [5, 5, 10]])
    always, by_chance = codes.company(together, 20)[:2]
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


def test_names_of_classes_are_no_markup(planted, planted_encoded, job):
    names = ("background", *("<script>" for _ in range(CLASSES)))
    odd = replace(planted_encoded, classes=names)
    found = codes.run(planted, odd, codes.Options(draws=1, pages=1, examples=1), job)
    assert (
        "<script>"
        not in found.files["dictionary/index.html"].split("<main>")[1].split("</main>")[0]
    )
