"""Fixtures for every room's tests."""

import pytest

from tests.servers import KINDS, Place, new_place


@pytest.fixture(params=KINDS)
def store_uri(request: pytest.FixtureRequest) -> Place:
    """A fresh place on each kind of store in turn."""
    return new_place(request.param)
