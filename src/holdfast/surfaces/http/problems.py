"""Errors as responses: `{"code", "message", "fields"}`, with the status that `kernel/errors.py`
gives to the code. Also the strict reading of bodies and queries, whose errors these are.

What HTTP itself refuses (no token, no such route, too large) has codes of its own here, as no other
surface meets it.
"""

import logging
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec

from holdfast.kernel.codec import Plain, encodable, to_json
from holdfast.kernel.errors import HoldfastError, InvalidValue, status_of
from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX
from holdfast.operations.operation import json_fields, unexpected

T = TypeVar("T")
_Request = Request[Any, Any, Any]
_log = logging.getLogger("holdfast.http")

ASIDE = "_"
"""Ends the names of query parameters in generated handlers: the framework reserves some names."""

SECURED: list[dict[str, list[str]]] = [{"bearer": []}]
"""What the OpenAPI says a request must show."""

BODY_TOO_LARGE = (
    f"the body may have {HTTP_BODY_BYTES_MAX} bytes: put long text into a file and name it"
)
_HTTP_CODES = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    422: "invalid_value",
}
_EVERY = (401, 403, 413, 422, 500, 503, 504)
_PATH_CHARS = 200
_NEXT = {
    404: "there is nothing at {path}: GET /schema lists what there is",
    405: "{path} does not take {method}: GET /schema lists what it takes",
    413: BODY_TOO_LARGE,
}
"""What to do about a refusal that the framework words in one phrase."""


class Problem(Plain, frozen=True, kw_only=True):
    """An error as a client gets it."""

    code: str
    message: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The error responses of a route in the OpenAPI: those of every route, and these."""
    return {
        status: ResponseSpec(
            data_container=Problem, description="A problem", generate_examples=False
        )
        for status in sorted({*_EVERY, *statuses})
    }


PUBLIC_PROBLEMS = {status: spec for status, spec in problems().items() if status in (403, 413, 422)}
"""The error responses of a route that needs no token and asks nothing of a store."""


def refusal(status: int, message: str) -> bytes:
    """The body of a refusal before any route is reached."""
    return to_json(Problem(code=_HTTP_CODES.get(status, "error"), message=message))


def _answer(status: int, problem: Problem, headers: Any = None) -> Response[Problem]:
    return Response(problem, status_code=status, media_type=MediaType.JSON, headers=headers)


def _on_holdfast_error(_: _Request, error: HoldfastError) -> Response[Problem]:
    message = encodable(error.message)
    problem = Problem(code=error.code, message=message, fields=json_fields(error))
    return _answer(status_of(error).http, problem)


def _on_http_error(request: _Request, error: HTTPException) -> Response[Problem]:
    """The framework's bad request is a wrong value here."""
    status = 422 if error.status_code in (400, 415) else error.status_code
    extra = [_renamed(one) for one in error.extra] if isinstance(error.extra, list) else []
    problem = Problem(
        code=_HTTP_CODES.get(status, "error"),
        message=_message(request, error, extra),
        fields={"problems": msgspec.to_builtins(extra, enc_hook=str)} if extra else {},
    )
    return _answer(status, problem, dict(error.headers or {}))


def _on_nesting(_: _Request, __: RecursionError) -> Response[Problem]:
    message, fields = "the body is nested too deeply", {"field": "body"}
    return _answer(422, Problem(code="invalid_value", message=message, fields=fields))


def _on_bug(request: _Request, error: Exception) -> Response[Problem]:
    _log.error("bug method=%s path=%s", request.method, request.url.path, exc_info=error)
    return _on_holdfast_error(request, unexpected(error))


HANDLERS: dict[int | type[Exception], Any] = {
    HoldfastError: _on_holdfast_error,
    HTTPException: _on_http_error,
    RecursionError: _on_nesting,
    Exception: _on_bug,
}


def _message(request: _Request, error: HTTPException, extra: list[Any]) -> str:
    named = "; ".join(
        f"{one.get('key', '')}: {one.get('message', '')}".strip(": ")
        for one in extra
        if isinstance(one, dict)
    )
    # Either phrase is the framework's default: that of Python's HTTPStatus, or of the error's type.
    bare = (HTTPStatus(error.status_code).phrase, getattr(type(error), "detail", None))
    if named or error.detail not in bare:
        return named or error.detail
    return _NEXT.get(error.status_code, error.detail).format(
        method=request.method, path=request.scope["path"][:_PATH_CHARS]
    )


def _renamed(one: Any) -> Any:
    """A wrong value under the name of the query parameter, not of the handler's argument."""
    if isinstance(one, dict) and "key" in one:
        return {**one, "key": str(one["key"]).removesuffix(ASIDE)}
    return one


def strictly(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Decode a body without converting types: "1" is not 1. But 1.0 is an integer in JSON.

    Raises InvalidValue.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        try:
            return msgspec.convert(_whole(msgspec.json.decode(body)), decoder.type)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise InvalidValue(f"the body is wrong: {error}", field="body") from None


def _whole(value: Any) -> Any:
    """The same value with every whole float as an integer."""
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def takes(*names: str) -> dict[str, Any]:
    """The `opt` of a route that takes these query parameters."""
    return {"query": frozenset(names)}


async def refuse_unknown_query(request: _Request) -> None:
    """Before a route is called: raise InvalidValue for a query parameter that it does not take,
    which is mostly a misspelt one.

    Async although it awaits nothing: the framework runs a sync hook in a thread, which costs as
    much as the rest of a request.
    """
    if not request.scope["query_string"]:
        return
    known = request.route_handler.opt.get("query", frozenset())
    if unknown := sorted(set(request.query_params) - known):
        which = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise InvalidValue(
            f"{unknown[0][:60]!a} is no parameter of {request.url.path}: {which}", field="query"
        )
