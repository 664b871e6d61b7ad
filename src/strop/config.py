"""Dataclass configs to and from plain dicts, refusing unknown keys and wrong types by name."""

from __future__ import annotations

import dataclasses
import operator
import types
import typing
from collections.abc import Mapping, Set
from numbers import Integral, Real
from typing import Any, TypeVar

from strop.errors import ConfigError, StropError, did_you_mean

Config = TypeVar("Config")

MOST = 2**63 - 1
"""The largest number that a config may hold."""

_LIMITS = {
    "min": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "max": (operator.le, "at most"),
    "below": (operator.lt, "below"),
}


_NUMBERS: dict[Any, Any] = {int: Integral, float: Real}
_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def to_dict(config: Any) -> dict[str, Any]:
    """The config as plain dicts, lists, numbers and strings, ready for JSON or TOML."""
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, by keys such as `model.generator.depth`: those `override` takes."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = prefix + key
        flat |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def changes(before: Mapping[str, Any], now: Mapping[str, Any], but: Set[str] = frozenset()) -> str:
    """What differs between flat tables, such as `steps was 10, now 20`; empty if nothing does."""
    found = [
        f"{key} was {before.get(key)}, now {now.get(key)}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in but
    ]
    return ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")


def from_dict(kind: type[Config], values: Mapping[str, Any], where: str = "config") -> Config:
    """Build the dataclass `kind` from `values`; `where` names the place in errors."""
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{where} is {values!r}.", f"Expected a table of {kind.__name__} settings."
        )
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            known = f"{did_you_mean(str(key), fields)}Known keys: {', '.join(fields)}."
            raise ConfigError(f"Unknown key {where}.{key}.", known)
    missing = [
        name
        for name, field in fields.items()
        if name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(
            f"{where} lacks {', '.join(missing)}.", f"Give a value for each in {where}."
        )
    return kind(
        **{key: typed(hints[key], value, f"{where}.{key}") for key, value in values.items()}
    )


def check_ranges(config: Any, where: str, **default: float) -> None:
    """Refuse numbers outside the range that the metadata of their field gives.

    `min` and `max` are allowed values; `above` and `below` are not. Numbers must be finite, those
    in a tuple have the range of the field, and configs inside are checked too. `default` is the
    range of fields without one.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{where}.{field.name}", **default)
        limits = {key: field.metadata[key] for key in _LIMITS if key in field.metadata} or default
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            inside = all(_LIMITS[key][0](number, limit) for key, limit in limits.items())
            if not (inside and -MOST <= number <= MOST):
                spans = [f"{_LIMITS[key][1]} {limit:,}" for key, limit in limits.items()]
                raise ConfigError(
                    f"{where}.{field.name} is {_plain(value)!r:.60}.",
                    f"Give a number that is {' and '.join(spans) or 'finite and smaller'}.",
                )


def in_range(
    value: object, what: str, least: int, most: int = MOST, error: type[StropError] = ConfigError
) -> int:
    """`value` as a whole number from `least` to `most`; or an error that calls it `what`."""
    number: int = typed(int, value, what)
    if not least <= number <= most:
        limit = f"{least:,} to {most:,}" if most < MOST else f"at least {least:,}"
        raise error(f"{what} is {number}.", f"Give a whole number, {limit}.")
    return number


def override(config: Config, assignments: Mapping[str, Any]) -> Config:
    """A copy of `config` with dotted keys replaced: `{"generator.depth": 4}`."""
    values = to_dict(config)
    for dotted, value in assignments.items():
        *path, last = dotted.split(".")
        table: Any = values
        for key in path:
            table = table.get(key) if isinstance(table, dict) else None
        if not isinstance(table, dict) or last not in table:
            raise ConfigError(f"Unknown key {dotted}.", _nearest_key(dotted, values))
        table[last] = value
    return from_dict(type(config), values)


def _nearest_key(dotted: str, values: Mapping[str, Any]) -> str:
    """A remedy for a dotted key that does not exist: the nearest one, or those of its table."""
    table, _, last = dotted.rpartition(".")
    keys = [(*key.rpartition("."),) for key in flatten(values)]
    same = {name: f"{where}.{name}" for where, _, name in keys if where == table}
    anywhere = {name: f"{where}.{name}".lstrip(".") for where, _, name in reversed(keys)}
    for names in (same, anywhere):
        if hint := did_you_mean(last, names):
            name = hint.split("'")[1]
            return hint.replace(name, names[name]).strip()
    return f"Known keys: {', '.join(same or values)}."


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def typed(hint: Any, value: Any, where: str) -> Any:
    """`value` as `hint`, or a `ConfigError`. An int passes for a float, and numbers of numpy
    for those of Python; nothing else converts."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        return typed(next(o for o in options if o is not type(None)), value, where)
    if origin is typing.Literal:
        if value in typing.get_args(hint):
            return value
        raise ConfigError(
            f"{where} is {value!r}.",
            f"Choose one of {', '.join(map(repr, typing.get_args(hint)))}.",
        )
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} is {value!r}.", "Expected a list.")
        item = typing.get_args(hint)[0]
        return tuple(typed(item, each, f"{where}[{i}]") for i, each in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type[Any], hint), value, where)
    if type(value) is int and abs(value) > MOST:
        raise ConfigError(f"{where} is {value!r:.60}.", f"Numbers are at most {MOST}.")
    if not isinstance(value, bool) and isinstance(value, _NUMBERS.get(hint, ())):
        return hint(value)
    if type(value) is not hint:
        raise ConfigError(
            f"{where} is {value!r}.", f"Give {_TYPES.get(hint, f'a {hint.__name__}')}."
        )
    return value
