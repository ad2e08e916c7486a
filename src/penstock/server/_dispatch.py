"""From the bytes of a request to the bytes of a response: key, rate, rights, parameters, handler, audit log.

If the code disagrees with that order, the code is wrong: nothing of a request is looked at before its key is known,
and no handler runs before its rights are checked.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError

from penstock.catalog.registry import AuditEvent, Principal
from penstock.errors import AccessDeniedError, NotFoundError, PenstockError
from penstock.server._logging import LOGGER
from penstock.server._rate_limit import RateLimit
from penstock.server.operations import (
    DELIMITER,
    ApiError,
    CredentialsResponse,
    ErrorResponse,
    Model,
    Operation,
    Raw,
    Request,
    Services,
    Target,
    denied,
    internal,
    invalid,
    parse_target,
    throttled,
    translate,
    unauthenticated,
)

_RANKS = {"reader": 0, "writer": 1, "admin": 2}
_ANONYMOUS = Principal(key_id="", member="", workspace="", role="reader")
_MAX_DETAIL = 500


@dataclass(frozen=True)
class Call:
    """A request as it arrived."""

    request_id: str
    address: str
    """Of the client."""
    key: str | None = field(repr=False)
    path_parts: Mapping[str, str]
    query: str = field(repr=False)
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """A response, and whose it is."""

    status: int
    body: bytes = field(repr=False)
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    principal: Principal = _ANONYMOUS


class Dispatcher:
    """Answers calls; every method may run in any thread."""

    def __init__(self, services: Services, *, rate_limit: float) -> None:
        self._services = services
        self._key_limit = RateLimit(rate_limit)
        # Only failures count: behind one address, such as that of a proxy, there may be many clients.
        self._address_limit = RateLimit(rate_limit)

    def answer(self, operation: Operation, call: Call) -> Answer:
        """Answer a call; never raises."""
        principal, target, detail = _ANONYMOUS, Target(), ""
        try:
            principal = self._authenticate(operation, call)
            target = parse_target(operation, dict(call.path_parts), principal)
            _authorize(operation, principal, target)
            params = _parse_params(operation, call)
            detail = params.model_dump_json(exclude_none=True) if operation.audit != "off" else ""
            request = Request(self._services, principal, target.workspace, target.table, target.item, params)
            result = operation.handler(request)
            if isinstance(result, CredentialsResponse):  # a location may belong to another table than the path
                target = replace(target, table=result.table)
            answer = _success(result, principal)
        except Exception as error:
            api_error = _as_api_error(error, operation, call)
            detail = _code_name(api_error)  # a message may repeat a key that was sent in the wrong place
            answer = error_answer(api_error, call.request_id, principal)
        if operation.audit != "off" and principal is not _ANONYMOUS and answer.status != 429:
            self._audit(operation, call, target, answer, detail)
        return answer

    def screen(self, operation: Operation, key: str | None) -> bool:
        """Whether a key was valid before, from memory alone; raises an `ApiError` for a key that cannot be valid."""
        if operation.right is None:
            return False
        if key is None:
            raise unauthenticated("this needs an API key; send it as `Authorization: Bearer …` or `x-api-key`")
        try:
            return self._services.registry.is_known_key(key)
        except AccessDeniedError as error:
            raise unauthenticated(str(error)) from error

    def _authenticate(self, operation: Operation, call: Call) -> Principal:
        if operation.right is None:
            return _ANONYMOUS
        is_known = self.screen(operation, call.key)
        assert call.key is not None
        # Who guesses must not lock out those whose keys are valid and who come from the same address.
        if not is_known and (wait_s := self._address_limit.wait_s(call.address)):
            raise throttled(wait_s)
        try:
            principal = self._services.registry.authenticate(call.key)
        except AccessDeniedError as error:
            self._address_limit.take(call.address)
            raise unauthenticated(str(error)) from error
        if wait_s := self._key_limit.take(principal.key_id):
            raise throttled(wait_s)
        return principal

    def _audit(self, operation: Operation, call: Call, target: Target, answer: Answer, detail: str) -> None:
        """Add an event to the log of the key's workspace; for the server's admin, of the target's or of the server."""
        principal = answer.principal
        event = AuditEvent(
            time_us=time.time_ns() // 1000,
            request_id=call.request_id,
            member=principal.member,
            key_id=principal.key_id,
            operation=operation.name,
            target=str(target),
            outcome=answer.status,
            detail=detail[:_MAX_DETAIL],
        )
        registry, now = self._services.registry, operation.audit == "now" and answer.status < 400
        place = target.workspace if principal.is_server_admin else principal.workspace
        try:
            if place is None or operation.right == "server_admin":
                registry.audit(event, now=now)
            else:
                registry.workspace(place).audit(event, now=now)
        except NotFoundError:  # there is no such workspace
            registry.audit(event)
        except PenstockError as error:  # the call itself is done
            LOGGER.error("no audit event", exc_info=error, extra={"fields": {"request_id": call.request_id}})


def _authorize(operation: Operation, principal: Principal, target: Target) -> None:
    """Check the rights of a key; another workspace is refused whether it exists or not."""
    if operation.right is None or operation.right == "any" or principal.is_server_admin:
        return
    if operation.right == "server_admin":
        raise denied("only the server's admin may do this")
    if target.workspace is None:
        if operation.root != "allowed":
            raise denied("only the server's admin may do this with the root namespace")
        return
    if target.workspace != principal.workspace:
        raise denied(
            f"this key is for the workspace {principal.workspace} and has no rights in {target.workspace}; "
            f"set PENSTOCK_WORKSPACE={principal.workspace} (or --workspace) to work with the key's own, or use a key "
            f"of {target.workspace}"
        )
    if _RANKS[principal.role] < _RANKS[operation.right]:
        raise denied(
            f"this needs the role {operation.right}, and {principal.member} is a {principal.role} of "
            f"{target.workspace}; ask an admin of the workspace"
        )


def _parse_params(operation: Operation, call: Call) -> Model:
    query = _parse_query(call.query)
    if query.get("delimiter", DELIMITER) != DELIMITER:
        raise invalid(f"delimiter: ids are joined by `{DELIMITER}` on this server; leave it out")
    if operation.request is None:
        return Model()
    try:
        if operation.method == "GET":
            return operation.request.model_validate(query)
        return operation.request.model_validate_json(call.body or b"{}")
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        texts = (f"{'.'.join(map(str, each['loc'])) or 'the request'}: {each['msg']}" for each in problems)
        raise invalid("; ".join(texts)) from None


def _parse_query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError:
        raise invalid("the query string cannot be parsed; write name=value&…") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise invalid("the query string names a parameter twice; name each once")
    return query


def _as_api_error(error: Exception, operation: Operation, call: Call) -> ApiError:
    if isinstance(error, ApiError):
        return error
    translated = translate(error, operation.target) if isinstance(error, PenstockError) else internal()
    if translated.status >= 500:
        LOGGER.error("request failed", exc_info=error, extra={"fields": {"request_id": call.request_id}})
    return translated


def _success(result: Model | Raw, principal: Principal) -> Answer:
    if isinstance(result, Raw):
        return Answer(200, result.data, result.media_type, principal=principal)
    return Answer(200, _json(result), principal=principal)


def error_answer(error: ApiError, request_id: str, principal: Principal = _ANONYMOUS) -> Answer:
    """The response for an error."""
    body = ErrorResponse(error=error.message, code=int(error.code), detail=_code_name(error), instance=request_id)
    return Answer(error.status, _json(body), headers=error.headers, principal=principal)


def _code_name(error: ApiError) -> str:
    return error.code.name.title().replace("_", "")


def _json(model: Any) -> bytes:
    text: str = model.model_dump_json(by_alias=True, exclude_none=True)
    return text.encode()
