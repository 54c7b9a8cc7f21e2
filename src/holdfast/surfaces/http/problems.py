"""Errors as answers: `{"code", "message", "fields"}`, with the status that the one table gives to
the code.

What HTTP itself refuses (no token, no such route, too large) has codes of its own here, as no other
surface meets it.
"""

import logging
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.errors import HoldfastError, InvalidValue, status_of
from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX

T = TypeVar("T")

_log = logging.getLogger("holdfast.http")

ASIDE = "_"
"""Behind the names of query parameters in handlers that are made: the framework keeps some names
for itself.
"""

_HTTP_CODES = {
    400: "invalid_value",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "invalid_value",
    422: "invalid_value",
}
"""What HTTP's own refusals are called."""


class Problem(Plain, frozen=True, kw_only=True):
    """An error as a client gets it."""

    code: str
    message: str
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


def problem_of(error: HoldfastError) -> tuple[int, Problem]:
    """The HTTP status and the body of an error of the tree."""
    return status_of(error).http, Problem(
        code=error.code, message=error.message, fields=_plain(dict(error.fields))
    )


def on_holdfast_error(_: Request[Any, Any, Any], error: HoldfastError) -> Response[Problem]:
    """Answer with an error of the tree."""
    status, problem = problem_of(error)
    return Response(problem, status_code=status, media_type=MediaType.JSON)


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    """Answer with a refusal of the framework; its bad request is a wrong value here."""
    status = 422 if error.status_code in (400, 415) else error.status_code
    extra = [_shown(one) for one in error.extra] if isinstance(error.extra, list) else []
    fields = {"problems": _plain(extra)} if extra else {}
    problem = Problem(
        code=_HTTP_CODES.get(status, "error"), message=_words(request, error, extra), fields=fields
    )
    return Response(
        problem, status_code=status, media_type=MediaType.JSON, headers=dict(error.headers or {})
    )


def on_nesting(_: Request[Any, Any, Any], __: RecursionError) -> Response[Problem]:
    """Answer for a body that is nested deeper than can be read."""
    problem = Problem(
        code="invalid_value", message="the body is nested too deeply", fields={"field": "body"}
    )
    return Response(problem, status_code=422, media_type=MediaType.JSON)


def on_bug(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Answer for what nobody expected: no more than that, as its words may hold what is not for
    everybody.
    """
    _log.error("bug method=%s path=%s", request.method, request.url.path, exc_info=error)
    problem = Problem(
        code="error",
        message=f"unexpected {type(error).__name__}: this is a bug; the server's log says where",
    )
    return Response(problem, status_code=500, media_type=MediaType.JSON)


HANDLERS: dict[int | type[Exception], Any] = {
    HoldfastError: on_holdfast_error,
    HTTPException: on_http_error,
    RecursionError: on_nesting,
    Exception: on_bug,
}


def strictly(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Decode a body, taking nothing for something else; but 1.0 is an integer in JSON.

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
    """The same with every whole number as one."""
    if isinstance(value, dict):
        return {name: _whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def refusal(status: int, message: str) -> tuple[int, bytes]:
    """The status and body of a refusal before any route is reached."""
    return status, to_json(Problem(code=_HTTP_CODES.get(status, "error"), message=message))


def _words(request: Request[Any, Any, Any], error: HTTPException, extra: list[Any]) -> str:
    told = "; ".join(
        f"{one.get('key', '')}: {one.get('message', '')}".strip(": ")
        for one in extra
        if isinstance(one, dict)
    )
    # A phrase that depends on the version of Python, or the words that the framework has for every
    # such error.
    bare = (HTTPStatus(error.status_code).phrase, getattr(type(error), "detail", None))
    if told or error.detail not in bare:
        return told or error.detail
    return _NEXT.get(error.status_code, error.detail).format(
        method=request.method, path=request.scope["path"][:_PATH_CHARS]
    )


_PATH_CHARS = 200
_NEXT = {
    404: "there is nothing at {path}: GET /schema lists what there is",
    405: "{path} does not take {method}: GET /schema lists what it takes",
    413: f"the body may have {HTTP_BODY_BYTES_MAX} bytes: put long text into a file and name it",
}
"""What the framework refuses in one word, and what to do then."""


def _shown(one: Any) -> Any:
    """A wrong value under the name that its client knows: handlers keep query parameters under
    names of their own.
    """
    return (
        {**one, "key": str(one["key"]).removesuffix(ASIDE)}
        if isinstance(one, dict) and "key" in one
        else one
    )


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError):
        return str(value)
