"""Operations on the server itself."""

from typing import Any

from penstock._version import __version__
from penstock.server.operations._models import HealthResponse
from penstock.server.operations._operation import Raw, Request

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DOCUMENT_TYPE = "application/json"
PAGE_TYPE = "text/html; charset=utf-8"


def health(request: Request[Any]) -> HealthResponse:
    """Whether the server and its database answer."""
    request.services.check_health()
    return HealthResponse(version=__version__)


def metrics(request: Request[Any]) -> Raw:
    """Metrics in the text format of Prometheus."""
    return Raw(request.services.metrics_text(), METRICS_TYPE)


def openapi_document(request: Request[Any]) -> Raw:
    """This API as an OpenAPI document."""
    return Raw(request.services.documents["openapi"], DOCUMENT_TYPE)


def docs_page(request: Request[Any]) -> Raw:
    """This API as a page to read."""
    return Raw(request.services.documents["docs"], PAGE_TYPE)
