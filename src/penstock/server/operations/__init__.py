"""The operations of the API, in one table."""

from penstock.server.operations._errors import (
    ApiError,
    Code,
    denied,
    internal,
    invalid,
    throttled,
    translate,
    unauthenticated,
)
from penstock.server.operations._ids import (
    DELIMITER,
    ITEMS,
    NAMESPACE_ID_PATTERN,
    TABLE_ID_PATTERN,
    WORKSPACE_ID_PATTERN,
    Target,
    parse_target,
)
from penstock.server.operations._models import CredentialsResponse, ErrorResponse, Model
from penstock.server.operations._operation import Operation, Raw, Request, Services
from penstock.server.operations._operations import OPERATIONS

__all__ = [
    "DELIMITER",
    "ITEMS",
    "NAMESPACE_ID_PATTERN",
    "OPERATIONS",
    "TABLE_ID_PATTERN",
    "WORKSPACE_ID_PATTERN",
    "ApiError",
    "Code",
    "CredentialsResponse",
    "ErrorResponse",
    "Model",
    "Operation",
    "Raw",
    "Request",
    "Services",
    "Target",
    "denied",
    "internal",
    "invalid",
    "parse_target",
    "throttled",
    "translate",
    "unauthenticated",
]
