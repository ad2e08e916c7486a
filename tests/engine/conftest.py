"""What the engine's tests share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def small_parts() -> Iterator[None]:
    """Tables here are small: cut their first blocks as those of large ones are cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.engine._selection._FIRST_BYTES", 2 << 10)
        yield
