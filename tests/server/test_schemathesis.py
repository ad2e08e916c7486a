"""Generated requests for the whole OpenAPI document: no crash, and no answer that it does not document."""

import json

import schemathesis
from hypothesis import HealthCheck, Phase, settings

from penstock.server._openapi import openapi_document
from tests.server.running import RunningServer

schema = schemathesis.openapi.from_dict(json.loads(openapi_document()))


@schema.parametrize()
@settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_does_what_the_document_says(case: schemathesis.Case, server: RunningServer) -> None:
    case.call_and_validate(base_url=server.url, headers={"Authorization": f"Bearer {server.admin_key}"})
