"""From an operation to its route: a handler whose signature the framework reads, and makes the
OpenAPI from.
"""

import inspect
from types import GenericAlias, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from litestar import HttpMethod, MediaType, Request, Response, route
from litestar.enums import RequestEncodingType
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import BodyKwarg, PathParameter, QueryParameter, RawBody

from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.store import Damage
from holdfast.surfaces.http.problems import ASIDE, Problem, strictly
from holdfast.surfaces.http.queries import takes
from holdfast.surfaces.http.server.desk import Desk
from holdfast.surfaces.http.server.operation import Operation
from holdfast.surfaces.http.server.segments import name_in

DAMAGED = "Holdfast-Damaged"
"""The header that says how many records a list had to leave out."""

_EVERY = (401, 403, 413, 422, 429, 500, 503, 504)
"""Every operation may be refused like this, whatever it is."""

SECURED: list[dict[str, list[str]]] = [{"bearer": []}]
"""What a request must show."""


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """What the OpenAPI says of errors."""
    every = sorted({*_EVERY, *statuses})
    return {
        status: ResponseSpec(
            data_container=Problem, description="A problem", generate_examples=False
        )
        for status in every
    }


def route_of(operation: Operation, desk: Desk) -> HTTPRouteHandler:
    """The route of an operation."""
    handler = _handler(operation, desk)
    path = operation.path
    for name in operation.in_path:
        path = path.replace(f"{{{name}}}", f"{{{name}:str}}")
    answers = problems(*operation.problems)
    if type(None) in get_args(operation.answers):
        answers[204] = ResponseSpec(
            data_container=None, description="There is nothing", generate_examples=False
        )
    return route(
        path,
        http_method=HttpMethod(operation.method),
        status_code=200,
        opt=takes()
        if operation.method == "POST"
        else takes(*(field.name for field in operation.elsewhere)),
        responses=answers,
        security=SECURED,
        operation_id=operation.name,
        tags=[operation.area],
        summary=(operation.call.__doc__ or "").partition("\n")[0],
    )(handler)


def _handler(operation: Operation, desk: Desk) -> Any:
    body = _body_of(operation)
    decoder = None if body is None else msgspec.json.Decoder(body)

    async def handle(request: Request[Any, Any, Any], **given: Any) -> Response[Any]:
        raw: bytes | None = given.pop("body", None)
        given.pop("data", None)
        if decoder is not None and raw is not None:
            given |= msgspec.structs.asdict(strictly(decoder, raw or b"{}"))
        given = {name.removesuffix(ASIDE): value for name, value in given.items()}
        given |= {name: name_in(given[name]) for name in operation.in_path}
        damaged: Damage = []
        answer = await desk.carry_out(operation, operation.asks(**given), damaged, request.receive)
        headers = {DAMAGED: str(len(damaged))} if damaged else {}
        if answer is None:
            return Response(None, status_code=204, headers=headers)
        return Response(to_json(answer), media_type=MediaType.JSON, headers=headers)

    _sign(handle, operation, body)
    return handle


def _sign(handle: Any, operation: Operation, body: type[Plain] | None) -> None:
    """Give a handler the name, the words and the signature of its operation."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = {field.name: field for field in msgspec.structs.fields(operation.asks)}
    parameters = [inspect.Parameter("request", keyword, annotation=Request[Any, Any, Any])]
    parameters += [_parameter(fields[name], PathParameter) for name in operation.in_path]
    if body is not None:
        parameters.append(inspect.Parameter("body", keyword, annotation=RawBody))
        annotation = _annotated(body, BodyKwarg(media_type=RequestEncodingType.JSON))
        # With a default always: the framework's words for a body that is not there say nothing, and
        # ours name what is missing.
        parameters.append(inspect.Parameter("data", keyword, annotation=annotation, default=None))
    elif operation.method != "POST":
        parameters += [_parameter(field, QueryParameter) for field in operation.elsewhere]
    returned = GenericAlias(Response, (_without_none(operation.answers),))
    handle.__name__ = operation.name.replace(".", "_")
    handle.__doc__ = operation.call.__doc__
    handle.__signature__ = inspect.Signature(parameters, return_annotation=returned)
    handle.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": returned}


def _parameter(
    field: msgspec.structs.FieldInfo, kind: type[PathParameter] | type[QueryParameter]
) -> inspect.Parameter:
    """A field as a parameter of a path or a query, with what is told and asked of it."""
    bare, meta = _taken_apart(field.type)
    said: dict[str, Any] = {}
    if meta is not None:
        bounds = {name: getattr(meta, name) for name in ("gt", "ge", "lt", "le", "description")}
        told = meta.extra_json_schema or {}
        bounds |= {
            "description": told.get("description", meta.description),
            "schema_extra": told.get("extra"),
        }
        said = {name: value for name, value in bounds.items() if value is not None}
    if not field.required:
        said["required"] = False
    default = inspect.Parameter.empty if field.required else field.default
    name = field.name
    if kind is QueryParameter:
        said["name"], name = field.name, f"{field.name}{ASIDE}"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=_annotated(bare, kind(**said)),
        default=default,
    )


def _annotated(kind: Any, said: Any) -> Any:
    """Annotate a type that is known at run time only: written in place, mypy takes the variable for
    a type.
    """
    return Annotated[kind, said]


def _taken_apart(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    """A type without what is said of it, and that."""
    if get_origin(kind) is Annotated:
        bare, *said = get_args(kind)
        return bare, next((one for one in said if isinstance(one, msgspec.Meta)), None)
    if get_origin(kind) in (Union, UnionType):
        parts = [_taken_apart(part) for part in get_args(kind)]
        meta = next((meta for _, meta in parts if meta is not None), None)
        return Union[tuple(bare for bare, _ in parts)], meta  # noqa: UP007
    return kind, None


def _without_none(kind: Any) -> Any:
    left = tuple(part for part in get_args(kind) if part is not type(None))
    return Union[left] if get_origin(kind) in (Union, UnionType) else kind  # noqa: UP007


def _body_of(operation: Operation) -> type[Plain] | None:
    """What the body is: what is asked, but for what the path says."""
    if not operation.has_body:
        return None
    if not operation.in_path:
        return operation.asks
    fields = [_field(field) for field in operation.elsewhere]
    words = {"__doc__": operation.asks.__doc__}
    made: Any = msgspec.defstruct(
        operation.asks.__name__, fields, bases=(Plain,), frozen=True, kw_only=True, namespace=words
    )
    made.__module__ = operation.asks.__module__
    return made  # type: ignore[no-any-return]


def _field(field: msgspec.structs.FieldInfo) -> Any:
    if field.required:
        return field.name, field.type
    made = field.default_factory is not msgspec.NODEFAULT
    return (
        field.name,
        field.type,
        msgspec.field(default_factory=field.default_factory) if made else field.default,
    )
