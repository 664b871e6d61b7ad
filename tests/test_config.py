"""Configs: plain dicts there and back, and what is wrong is named."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.config import flatten, from_dict, override, to_dict
from strop.errors import ConfigError

NUMBERS = st.integers(1 - 2**63, 2**63 - 1)


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int = 2
    rate: float = 0.5
    widths: tuple[int, ...] = (4, 8)


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    optional: Inner | None = None
    fit: Literal["squash", "crop"] = "squash"
    flag: bool = False
    limit: int | None = None


@given(
    name=st.text(),
    depth=NUMBERS,
    rate=st.floats(allow_nan=False),
    widths=st.lists(NUMBERS).map(tuple),
    fit=st.sampled_from(["squash", "crop"]),
    flag=st.booleans(),
    limit=st.none() | NUMBERS,
    nested=st.booleans(),
)
def test_a_config_survives_json(name, depth, rate, widths, fit, flag, limit, nested):
    inner = Inner(depth=depth, rate=rate, widths=widths)
    config = Outer(
        name=name, inner=inner, optional=inner if nested else None, fit=fit, flag=flag, limit=limit
    )
    assert from_dict(Outer, json.loads(json.dumps(to_dict(config)))) == config


def test_what_is_not_given_takes_its_default():
    assert from_dict(Outer, {"name": "a"}) == Outer(name="a")


def test_a_whole_number_passes_for_a_float_and_is_one():
    rate = from_dict(Inner, {"rate": 1}).rate
    assert rate == 1.0
    assert type(rate) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nmae": "a"}, r"Unknown key config.nmae. Did you mean 'name'\? Known keys: name, inner"),
        ({"name": "a", "xyz": 1}, r"Unknown key config.xyz. Known keys: name, inner"),
        (
            {"name": "a", "inner": {"dept": 1}},
            r"Unknown key config.inner.dept. Did you mean 'depth'\?",
        ),
        ({}, r"config lacks name. Give a value"),
        ({"name": 3}, r"config.name is 3. Give text"),
        ({"name": "a", "flag": 1}, r"config.flag is 1. Give true or false"),
        ({"name": "a", "inner": {"depth": 1.0}}, r"config.inner.depth is 1.0. Give a whole number"),
        (
            {"name": "a", "inner": {"depth": True}},
            r"config.inner.depth is True. Give a whole number",
        ),
        ({"name": "a", "inner": {"depth": None}}, r"config.inner.depth is None"),
        ({"name": "a", "inner": {"rate": "1"}}, r"config.inner.rate is '1'. Give a number"),
        ({"name": "a", "inner": {"rate": True}}, r"config.inner.rate is True. Give a number"),
        ({"name": "a", "inner": {"widths": 3}}, r"config.inner.widths is 3. Expected a list"),
        ({"name": "a", "inner": {"widths": [3, "x"]}}, r"config.inner.widths\[1\] is 'x'"),
        ({"name": "a", "inner": 3}, r"config.inner is 3. Expected a table of Inner settings"),
        ({"name": "a", "inner": None}, r"config.inner is None. Expected a table"),
        ({"name": "a", "optional": {"depht": 3}}, r"config.optional.depht. Did you mean 'depth'"),
        ({"name": "a", "limit": "x"}, r"config.limit is 'x'. Give a whole number"),
        ({"name": "a", "fit": "stretch"}, r"config.fit is 'stretch'. Choose one of 'squash', 'cro"),
        ({"name": "a", "fit": ["squash"]}, r"config.fit is \['squash'\]"),
        ([], r"config is \[\]. Expected a table of Outer settings"),
        (None, r"config is None. Expected a table"),
    ],
)
def test_what_is_wrong_is_named(values: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        from_dict(Outer, values)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
        max_leaves=8,
    )
    | st.fixed_dictionaries(
        {"name": st.text()},
        optional={key: st.none() | st.integers() | st.text() for key in ("inner", "fit", "limit")},
    )
)
def test_any_json_gives_a_config_or_a_config_error(values):
    with contextlib.suppress(ConfigError):
        assert isinstance(from_dict(Outer, values), Outer)


def test_override_replaces_dotted_keys_in_a_copy():
    config = Outer(name="a")
    changed = override(config, {"inner.depth": 7, "fit": "crop", "inner.widths": [1]})
    assert changed == Outer(name="a", inner=Inner(depth=7, widths=(1,)), fit="crop")
    assert config == Outer(name="a")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("inner.dept", 1, r"Unknown key inner.dept. Did you mean 'inner.depth'"),
        ("iner.depth", 1, r"Unknown key iner.depth. Did you mean 'inner.depth'"),
        ("name.depth", 1, r"Unknown key name"),
        ("", 1, r"Unknown key "),
        ("inner.depth", "x", r"inner.depth is 'x'. Give a whole number"),
    ],
)
def test_override_names_what_is_wrong(key, value, message):
    with pytest.raises(ConfigError, match=message):
        override(Outer(name="a"), {key: value})


def test_flat_keys_are_those_that_override_takes():
    config = Outer(name="a", inner=Inner(depth=5, widths=(1, 2)), limit=3)
    flat = flatten(to_dict(config))
    assert flat["inner.depth"] == 5
    assert flat["inner.widths"] == [1, 2]
    assert override(Outer(name="b"), flat) == config
