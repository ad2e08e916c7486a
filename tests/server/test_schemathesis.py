"""Generated requests for the whole OpenAPI document: no crash, and no answer that it does not document."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from penstock.server._openapi import openapi_document
from tests.server.running import RunningServer, running
from tests.servers import new_database

schema = schemathesis.openapi.from_dict(json.loads(openapi_document()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """On PostgreSQL, which refuses more than SQLite does."""
    folder = tmp_path_factory.mktemp("server")
    with running(folder, "--database", new_database(), "--rate-limit", "1000000") as started:
        yield started


@schema.parametrize()
@settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_does_what_the_document_says(case: Any, server: RunningServer) -> None:
    case.call_and_validate(base_url=server.url, headers={"Authorization": f"Bearer {server.admin_key}"})
