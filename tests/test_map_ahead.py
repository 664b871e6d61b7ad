"""Results computed in advance."""

import threading
from collections.abc import Iterator

import pytest

from strop.pool import map_ahead


@pytest.mark.parametrize("ahead", [0, 1, 3, 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_it_is_map_in_order(ahead, threads):
    assert list(map_ahead(lambda x: x * x, range(10), ahead, threads=threads)) == [
        x * x for x in range(10)
    ]


def test_items_are_drawn_only_as_far_ahead_as_asked():
    drawn = []

    def items() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    results = map_ahead(str, items(), 4)
    assert next(results) == "0"
    assert len(drawn) == 5
    results.close()


def test_results_are_computed_before_they_are_asked_for():
    reached = threading.Event()

    def note(number: int) -> int:
        if number == 1:
            reached.set()
        return number

    results = map_ahead(note, range(3), 1)
    assert next(results) == 0
    assert reached.wait(5)
    results.close()


def test_an_exception_takes_the_place_of_its_result():
    results = map_ahead(lambda x: 1 // x, [1, 0, 1], 2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
