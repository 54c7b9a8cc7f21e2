"""The routes of operations. The web framework reads a handler's signature for the OpenAPI."""

import inspect
from types import GenericAlias
from typing import Annotated, Any, get_args
from urllib.parse import unquote

import msgspec
from litestar import HttpMethod, MediaType, Request, Response, route
from litestar.enums import RequestEncodingType, ScopeType
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import BodyKwarg, PathParameter, QueryParameter, RawBody
from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.kernel.codec import Plain, to_json
from holdfast.kernel.store import Damage
from holdfast.operations.operation import Operation, unwrapped
from holdfast.surfaces.http import problems as problems_
from holdfast.surfaces.http.problems import ASIDE, SECURED, strictly, takes
from holdfast.surfaces.http.server.executor import Executor

DAMAGED = "Holdfast-Damaged"
"""The header that says how many records a list had to leave out."""

_STAND_IN = "\x1f"
"""Stands for a slash inside a name. No name has it: control characters are refused."""
_NO_NAME = "\x00"


def problems(*statuses: int) -> dict[int, ResponseSpec]:
    """The error responses of a route of this server, which may have too much to do."""
    return problems_.problems(429, *statuses)


class SlashesInNames:
    """An ASGI application in front of another, which gets paths whose parts may hold a slash.

    A lock may be called /dev/ttyUSB0. In a path its slashes are written as %2F, which uvicorn
    decodes before anything is routed. A stand-in keeps them apart from the slashes between parts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == ScopeType.HTTP and b"%" in scope["raw_path"]:
            parts = scope["raw_path"].decode("latin-1").split("/")
            scope["path"] = "/".join(
                unquote(part).replace(_STAND_IN, _NO_NAME).replace("/", _STAND_IN) for part in parts
            )
        await self._app(scope, receive, send)


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
    return route(
        path,
        http_method=HttpMethod(operation.method),
        status_code=200,
        opt=takes(*_queried(operation)),
        responses=responses,
        security=SECURED,
        operation_id=operation.name,
        tags=[operation.area],
        summary=operation.description.partition("\n")[0],
    )(_handler(operation, executor))


def _handler(operation: Operation, executor: Executor) -> Any:
    body = _body_type(operation)
    decoder: Any = None if body is None else msgspec.json.Decoder(body)
    path_fields = operation.path_fields
    queried = {f"{name}{ASIDE}": name for name in _queried(operation)}

    async def handle(request: Request[Any, Any, Any], **given: Any) -> Response[Any]:
        fields = {queried[name]: value for name, value in given.items() if name in queried}
        for name in path_fields:
            fields[name] = given[name].replace(_STAND_IN, "/")
        if decoder is None:
            filled = operation.request(**fields)
        else:
            filled = strictly(decoder, given["body"] or b"{}")
            if path_fields:
                filled = operation.request(**fields, **msgspec.structs.asdict(filled))
        damaged: Damage = []
        result = await executor.run(operation, filled, damaged, request.receive)
        headers = {DAMAGED: str(len(damaged))} if damaged else {}
        if result is None:
            return Response(None, status_code=204, headers=headers)
        return Response(to_json(result), media_type=MediaType.JSON, headers=headers)

    _sign(handle, operation, body)
    return handle


def _queried(operation: Operation) -> list[str]:
    """The fields that are taken from the query."""
    return [] if operation.method == "POST" else [field.name for field in operation.other_fields]


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
    parameters += [_parameter(fields[name], QueryParameter) for name in _queried(operation)]
    returned = GenericAlias(Response, (unwrapped(operation.result)[0],))
    handle.__name__ = operation.name.replace(".", "_")
    handle.__doc__ = operation.description
    handle.__signature__ = inspect.Signature(parameters, return_annotation=returned)
    handle.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": returned}


def _parameter(
    field: msgspec.structs.FieldInfo, kind: type[PathParameter] | type[QueryParameter]
) -> inspect.Parameter:
    bare, notes, optional = unwrapped(field.type)
    meta = next((one for one in notes if isinstance(one, msgspec.Meta)), None)
    known: dict[str, Any] = {}
    if meta is not None:
        extra = meta.extra_json_schema or {}
        known = {name: getattr(meta, name) for name in ("gt", "ge", "lt", "le")}
        known["description"] = extra.get("description", meta.description)
        known["schema_extra"] = extra.get("extra")
        known = {name: value for name, value in known.items() if value is not None}
    if not field.required:
        known["required"] = False
    name = field.name
    if kind is QueryParameter:
        known["name"], name = field.name, f"{field.name}{ASIDE}"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=_annotated(bare | None if optional else bare, kind(**known)),
        default=inspect.Parameter.empty if field.required else field.default,
    )


def _annotated(kind: Any, note: Any) -> Any:
    """A type that is known at run time only, annotated: mypy accepts no variable in its place."""
    return Annotated[kind, note]


def _body_type(operation: Operation) -> type[Plain] | None:
    """What the body is: the request without the fields of the path."""
    if not operation.has_body:
        return None
    request = operation.request
    if not operation.path_fields:
        return request
    make: Any = msgspec.field
    fields = [
        (one.name, one.type, make(default=one.default, default_factory=one.default_factory))
        for one in operation.other_fields
    ]
    body: Any = msgspec.defstruct(
        request.__name__,
        fields,
        bases=(Plain,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": request.__doc__},
        module=request.__module__,
    )
    return body  # type: ignore[no-any-return]
