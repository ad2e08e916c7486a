"""Fixtures for every room's tests."""

import os
import signal

import pytest
from hypothesis import settings

from tests.servers import KINDS, Place, new_place

# The same examples every time where a failure would stop somebody else's work; new ones wherever people run the tests.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
# A shell makes what it starts in the background deaf to Ctrl-C, and all programs that tests interrupt with it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=KINDS)
def store_uri(request: pytest.FixtureRequest) -> Place:
    """A fresh place on each kind of store in turn."""
    return new_place(request.param)
