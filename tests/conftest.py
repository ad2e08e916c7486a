"""Fixtures for every room's tests."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import KINDS, StoreLocation, new_location

# Hypothesis has no bound on time: on a busy machine it would fail whatever example is slow. CI always runs the same
# examples, so that a failure belongs to the change under test.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))
# Tests use the embedded catalog unless they start a server.
for _name in ("PENSTOCK_API_KEY", "PENSTOCK_API_URL", "PENSTOCK_WORKSPACE"):
    os.environ.pop(_name, None)
# Background jobs of a shell ignore SIGINT, and child processes inherit that; the tests interrupt child processes.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=KINDS)
def store_uri(request: pytest.FixtureRequest) -> StoreLocation:
    """A new location on each kind of store in turn."""
    return new_location(request.param)
