"""Fixtures of the engine's tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def small_parts() -> Iterator[None]:
    """Tables here are small: split first blocks as in large tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.engine.planning._whole_blocks._FIRST_BYTES", 2 << 10)
        patch.setattr("penstock.engine.planning._whole_blocks._FIRST_LOCAL_BYTES", 2 << 10)
        patch.setattr("penstock.engine.planning._composed._MIN_PART_BYTES", 2 << 10)
        yield


@pytest.fixture
def not_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables here are small: read them in every epoch, as large tables."""
    monkeypatch.setattr("penstock.engine._sizing.LoaderSizing._fits", lambda *_, **__: False)
