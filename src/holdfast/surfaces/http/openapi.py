"""The web application of a server, with its OpenAPI: strict as our values are, and also as a page
that loads nothing from elsewhere.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from html import escape
from typing import Any

import msgspec
from litestar import Litestar, Request
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import (
    Components,
    Operation,
    Reference,
    RequestBody,
    Schema,
    SecurityScheme,
)

from holdfast import __version__
from holdfast.kernel.limits import HTTP_BODY_BYTES_MAX
from holdfast.surfaces.http.events import Changes
from holdfast.surfaces.http.problems import HANDLERS, refuse_unknown_query

_METHODS = ("get", "post", "put", "patch", "delete")
_DOCUMENT = "/schema"
_STYLE = """:root{color-scheme:light dark}
body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h3{font:600 1rem/1.5 ui-monospace,monospace;margin:2rem 0 0;overflow-wrap:anywhere}
p{white-space:pre-line;margin:.3rem 0}
pre{overflow:auto;padding:.5rem;border:1px solid #8886}
td,th{text-align:left;vertical-align:top;padding:.1rem 1rem .1rem 0}"""


def application(
    routes: list[Any],
    changes: Changes,
    *,
    title: str,
    description: str | None = None,
    close: Callable[[], None],
) -> Litestar:
    """An application with these routes. `changes` listens while it serves; `close` is called at its
    end.
    """

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        changes.start()
        try:
            yield
        finally:
            changes.close()
            close()

    documented = False

    async def before_request(request: Request[Any, Any, Any]) -> None:
        nonlocal documented
        if not documented and request.scope["path"].startswith(_DOCUMENT):
            # Not before somebody asks for it: it takes longer than everything else that a gateway
            # needs to begin, and a host begins many of them.
            documented = True
            _make_strict(request.app)
        await refuse_unknown_query(request)

    bearer = SecurityScheme(type="http", scheme="bearer")
    alive: Callable[[Litestar], AbstractAsyncContextManager[None]] = lifespan
    return Litestar(
        routes,
        before_request=before_request,
        exception_handlers=HANDLERS,
        lifespan=[alive],
        logging_config=None,
        request_max_body_size=HTTP_BODY_BYTES_MAX,
        openapi_config=OpenAPIConfig(
            title=title,
            version=__version__,
            description=description,
            components=Components(security_schemes={"bearer": bearer}),
            use_handler_docstrings=True,
            render_plugins=[ReferencePage()],
        ),
    )


def _make_strict(app: Litestar) -> None:
    """Correct what the framework says: our values refuse unknown properties, its own refusals of
    values are answered with 422, and a body without required fields may be left out.
    """
    document = app.openapi_schema
    schemas = document.components.schemas or {}
    for schema in schemas.values():
        if schema.properties is not None:
            schema.additional_properties = False
    for path in (document.paths or {}).values():
        for operation in (getattr(path, method) for method in _METHODS):
            if not isinstance(operation, Operation):
                continue
            (operation.responses or {}).pop("400", None)
            if isinstance(body := operation.request_body, RequestBody):
                body.required = any(
                    _is_required(media.schema, schemas) for media in body.content.values()
                )


def _is_required(schema: Schema | Reference | None, schemas: dict[str, Schema]) -> bool:
    if isinstance(schema, Reference):
        schema = schemas.get(schema.ref.rpartition("/")[2])
    return schema is None or bool(schema.required) or schema.properties is None


class ReferencePage(OpenAPIRenderPlugin):
    """Every operation by area, with its parameters, body and responses, as plain HTML."""

    def __init__(self) -> None:
        super().__init__(path="/")
        self._rendered: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - the port's
        """The page, which is rendered once: it is the same for everybody."""
        if self._rendered is None:
            self._rendered = "\n".join(_page(openapi_schema)).encode()
        return self._rendered


def _page(document: dict[str, Any]) -> Iterator[str]:
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield f"<style>{_STYLE}</style></head>"
    yield f"<body><h1>{title}</h1><p>The same for programs: "
    yield '<a href="/schema/openapi.json">openapi.json</a></p>'
    areas: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            area = areas.setdefault((operation.get("tags") or [""])[0], [])
            area.extend(_operation(method.upper(), path, operation))
    for name, lines in sorted(areas.items()):
        yield f"<h2>{escape(name)}</h2>" if name else ""
        yield from lines
    yield "<h2>values</h2>"
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3>{_json(schema)}'
    yield "</body></html>"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    description = operation.get("description") or operation.get("summary") or ""
    yield f"<h3>{method} {escape(path)}</h3><p>{escape(description)}</p>"
    if parameters := operation.get("parameters"):
        yield "<table>"
        for one in parameters:
            needed = "needed" if one.get("required") else ""
            words = (one["name"], one["in"], needed, one.get("description") or "")
            yield "<tr>" + "".join(f"<td>{escape(word)}</td>" for word in words) + "</tr>"
        yield "</table>"
    for media in (operation.get("requestBody") or {}).get("content", {}).values():
        yield f"<p>takes {_kind(media['schema'])}</p>"
    responses = operation.get("responses") or {}
    for status, response in responses.items():
        if status.startswith("2"):
            for media in (response.get("content") or {}).values():
                yield f"<p>{status}: {_kind(media['schema'])}</p>"
    errors = (status for status in responses if not status.startswith("2"))
    yield f"<p>errors: {', '.join(errors)}</p>"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    return f"a list of {_kind(schema['items'])}" if "items" in schema else _json(schema)


def _json(schema: dict[str, Any]) -> str:
    text = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
    return f"<pre>{escape(text)}</pre>"
