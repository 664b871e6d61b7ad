"""What parsers raise, in one place, as errors of strop."""

from __future__ import annotations

import pytest
from torch._utils import ExceptionWrapper

from strop.errors import DataError, FormatError, StropError, parsing


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad\nand more"), "bad"),
        (KeyError("name"), "'name' is missing"),
        (RecursionError("too deep"), "too deep"),
        (MemoryError(), "MemoryError"),
        (FileNotFoundError(2, "No such file or directory"), "No such file or directory"),
        (ValueError("9" * 5000), "9" * 200),
    ],
)
def test_everything_becomes_an_error_with_a_reason_of_one_line(error, said):
    with pytest.raises(FormatError) as caught, parsing(FormatError, "It is bad", "Mend it."):
        raise error
    assert caught.value.problem == f"It is bad ({said})."
    assert caught.value.remedy == "Mend it."
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [DataError("a", "b"), KeyboardInterrupt()])
def test_errors_of_strop_and_interrupts_pass(error):
    with pytest.raises(type(error)) as caught, parsing(FormatError, "It is bad", "Mend it."):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("kind", [StropError, *StropError.__subclasses__()])
def test_an_error_keeps_its_type_in_workers_of_a_data_loader(kind: type[StropError]) -> None:
    try:
        raise kind("This is wrong.", "Correct it.")
    except StropError:
        wrapped = ExceptionWrapper(where="in a worker")
    with pytest.raises(kind, match=r"(?s)This is wrong\. Correct it\.") as caught:
        wrapped.reraise()
    assert type(caught.value) is kind
