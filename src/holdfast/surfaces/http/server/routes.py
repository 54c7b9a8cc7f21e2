"""The routes of operations. The web framework reads a handler's signature for the OpenAPI."""

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
from holdfast.operations.operation import Operation
from holdfast.surfaces.http.problems import ASIDE, Problem, strictly
from holdfast.surfaces.http.queries import takes
from holdfast.surfaces.http.server.executor import Executor
from holdfast.surfaces.http.server.path_names import name_in

DAMAGED = "Holdfast-Damaged"
"""The header that says how many records a list had to leave out."""

_EVERY = (401, 403, 413, 422, 429, 500, 503, 504)
"""Every operation may be refused with these."""

SECURED: list[dict[str, list[str]]] = [{"bearer": []}]
"""What the OpenAPI says a request must show."""


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """What the OpenAPI says of errors."""
    return {
        status: ResponseSpec(
            data_container=Problem, description="A problem", generate_examples=False
        )
        for status in sorted({*_EVERY, *statuses})
    }


def route_of(operation: Operation, executor: Executor) -> HTTPRouteHandler:
    """The route of an operation."""
    path = operation.path
    for name in operation.path_fields:
        path = path.replace(f"{{{name}}}", f"{{{name}:str}}")
    responses = problems(*operation.statuses)
    if type(None) in get_args(operation.result):
        responses[204] = ResponseSpec(
            data_container=None, description="There is nothing", generate_examples=False
        )
    queried = () if operation.method == "POST" else operation.other_fields
    return route(
        path,
        http_method=HttpMethod(operation.method),
        status_code=200,
        opt=takes(*(field.name for field in queried)),
        responses=responses,
        security=SECURED,
        operation_id=operation.name,
        tags=[operation.area],
        summary=operation.description.partition("\n")[0],
    )(_handler(operation, executor))


def _handler(operation: Operation, executor: Executor) -> Any:
    body = _body_type(operation)
    decoder = None if body is None else msgspec.json.Decoder(body)

    async def handle(request: Request[Any, Any, Any], **given: Any) -> Response[Any]:
        raw: bytes | None = given.pop("body", None)
        given.pop("data", None)
        if decoder is not None and raw is not None:
            given |= msgspec.structs.asdict(strictly(decoder, raw or b"{}"))
        given = {name.removesuffix(ASIDE): value for name, value in given.items()}
        given |= {name: name_in(given[name]) for name in operation.path_fields}
        damaged: Damage = []
        result = await executor.run(operation, operation.request(**given), damaged, request.receive)
        headers = {DAMAGED: str(len(damaged))} if damaged else {}
        if result is None:
            return Response(None, status_code=204, headers=headers)
        return Response(to_json(result), media_type=MediaType.JSON, headers=headers)

    _sign(handle, operation, body)
    return handle


def _sign(handle: Any, operation: Operation, body: type[Plain] | None) -> None:
    """Give a handler the name, the docstring and the signature of its operation."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    fields = {field.name: field for field in msgspec.structs.fields(operation.request)}
    parameters = [inspect.Parameter("request", keyword, annotation=Request[Any, Any, Any])]
    parameters += [_parameter(fields[name], PathParameter) for name in operation.path_fields]
    if body is not None:
        parameters.append(inspect.Parameter("body", keyword, annotation=RawBody))
        annotation = _annotated(body, BodyKwarg(media_type=RequestEncodingType.JSON))
        # Always with a default: the framework's message for a missing body says nothing, and ours
        # names the missing fields.
        parameters.append(inspect.Parameter("data", keyword, annotation=annotation, default=None))
    elif operation.method != "POST":
        parameters += [_parameter(field, QueryParameter) for field in operation.other_fields]
    returned = GenericAlias(Response, (_without_none(operation.result),))
    handle.__name__ = operation.name.replace(".", "_")
    handle.__doc__ = operation.description
    handle.__signature__ = inspect.Signature(parameters, return_annotation=returned)
    handle.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": returned}


def _parameter(
    field: msgspec.structs.FieldInfo, kind: type[PathParameter] | type[QueryParameter]
) -> inspect.Parameter:
    bare, meta = split_type(field.type)
    said: dict[str, Any] = {}
    if meta is not None:
        extra = meta.extra_json_schema or {}
        bounds = {name: getattr(meta, name) for name in ("gt", "ge", "lt", "le")}
        bounds["description"] = extra.get("description", meta.description)
        bounds["schema_extra"] = extra.get("extra")
        said = {name: value for name, value in bounds.items() if value is not None}
    if not field.required:
        said["required"] = False
    default = inspect.Parameter.empty if field.required else field.default
    name = field.name
    if kind is QueryParameter:
        said["name"], name = field.name, f"{field.name}{ASIDE}"
    annotation = _annotated(bare, kind(**said))
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _annotated(kind: Any, said: Any) -> Any:
    """Annotate a type that is known at run time only: mypy takes a variable in place for a type."""
    return Annotated[kind, said]


def split_type(kind: Any) -> tuple[Any, msgspec.Meta | None]:
    """A type without its annotations, and the first `Meta` among them."""
    if get_origin(kind) is Annotated:
        inner, *said = get_args(kind)
        bare, meta = split_type(inner)
        return bare, meta or next((one for one in said if isinstance(one, msgspec.Meta)), None)
    if get_origin(kind) in (Union, UnionType):
        parts = [split_type(part) for part in get_args(kind)]
        metas = (meta for _, meta in parts if meta is not None)
        return Union[tuple(bare for bare, _ in parts)], next(metas, None)  # noqa: UP007
    return kind, None


def _without_none(kind: Any) -> Any:
    left = tuple(part for part in get_args(kind) if part is not type(None))
    return Union[left] if get_origin(kind) in (Union, UnionType) else kind  # noqa: UP007


def _body_type(operation: Operation) -> type[Plain] | None:
    """What the body is: the request without the fields of the path."""
    if not operation.has_body:
        return None
    request = operation.request
    if not operation.path_fields:
        return request
    made: Any = msgspec.defstruct(
        request.__name__,
        [_field(field) for field in operation.other_fields],
        bases=(Plain,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": request.__doc__},
    )
    made.__module__ = request.__module__
    return made  # type: ignore[no-any-return]


def _field(field: msgspec.structs.FieldInfo) -> Any:
    if field.required:
        return field.name, field.type
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    return field.name, field.type, field.default
