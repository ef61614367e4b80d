"""A file of generated code that passes all checks and is no generated code is a miss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tdist.platforms.sim import source_cache


@pytest.mark.parametrize("kept", [[], {}, "text", {"source": ""}, {"source": "", "tiers": [[1]]}, {"tiers": 3}])
def test_what_is_no_generated_code_is_a_miss(monkeypatch, kept):
    monkeypatch.setattr(source_cache, "_CACHE", SimpleNamespace(load=lambda key: kept))
    assert source_cache.load("key") is None
