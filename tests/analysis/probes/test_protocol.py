"""The protocols by name."""

from __future__ import annotations

import pytest

from strop.analysis.probes.protocol import PAPER, STRONG, find_protocol
from strop.errors import ConfigError


def test_the_papers_protocol_is_short_and_pools_tokens():
    assert PAPER.steps <= 1000
    assert PAPER.pooling
    assert PAPER.balance == 0


def test_protocols_are_found_by_name():
    assert find_protocol("paper") is PAPER
    assert find_protocol("strong") is STRONG
    with pytest.raises(ConfigError, match="Did you mean 'strong'"):
        find_protocol("string")
