"""Operations on the server itself."""

from typing import Any

from penstock._version import __version__
from penstock.errors import PenstockError
from penstock.server.operations._errors import ApiError, Code
from penstock.server.operations._models import HealthRequest, HealthResponse
from penstock.server.operations._operation import Raw, Request

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DOCUMENT_TYPE = "application/json"
PAGE_TYPE = "text/html; charset=utf-8"


def health(request: Request[HealthRequest]) -> HealthResponse:
    """Whether the server and its database answer, or all that it depends on works."""
    services = request.services
    try:
        services.check_deeply() if request.params.deep else services.check_health()
    except PenstockError as error:
        message = "the server does not work as it should; its log says why, and so does `penstock serve check`"
        raise ApiError(503, Code.SERVICE_UNAVAILABLE, message, {"retry-after": "5"}) from error
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
