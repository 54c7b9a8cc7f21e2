"""The OpenAPI as a page that a browser shows without asking anybody else for anything."""

from collections.abc import Iterator
from html import escape
from typing import Any

import msgspec
from litestar import Request
from litestar.openapi.plugins import OpenAPIRenderPlugin

_STYLE = """:root{color-scheme:light dark}
body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h3{font:600 1rem/1.5 ui-monospace,monospace;margin:2rem 0 0;overflow-wrap:anywhere}
p{white-space:pre-line;margin:.3rem 0}
pre{overflow:auto;padding:.5rem;border:1px solid #8886}
td,th{text-align:left;vertical-align:top;padding:.1rem 1rem .1rem 0}"""


class Reference(OpenAPIRenderPlugin):
    """Every operation by area, with what it takes and what it answers, as plain HTML."""

    def __init__(self) -> None:
        super().__init__(path="/")
        self._rendered: bytes | None = None

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002 - the port's
        """The page."""
        # Made once: it is for everybody, and takes long to make.
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
            told = "\n".join(_operation(method.upper(), path, operation))
            areas.setdefault((operation.get("tags") or [""])[0], []).append(told)
    for area, operations in sorted(areas.items()):
        yield f"<h2>{escape(area)}</h2>" if area else ""
        yield from operations
    yield "<h2>values</h2>"
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3>{_json(schema)}'
    yield "</body></html>"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    description = operation.get("description") or operation.get("summary") or ""
    yield f"<h3>{method} {escape(path)}</h3><p>{escape(description)}</p>"
    parameters = operation.get("parameters") or []
    if parameters:
        yield "<table>"
        for one in parameters:
            needed = "needed" if one.get("required") else ""
            words = (one["name"], one["in"], needed, one.get("description") or "")
            yield "<tr>" + "".join(f"<td>{escape(word)}</td>" for word in words) + "</tr>"
        yield "</table>"
    for media in (operation.get("requestBody") or {}).get("content", {}).values():
        yield f"<p>takes {_kind(media['schema'])}</p>"
    answers = operation.get("responses") or {}
    for status, answer in answers.items():
        for media in (answer.get("content") or {}).values():
            if status.startswith("2"):
                yield f"<p>{status}: {_kind(media['schema'])}</p>"
    yield f"<p>errors: {', '.join(status for status in answers if not status.startswith('2'))}</p>"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    return f"a list of {_kind(schema['items'])}" if "items" in schema else _json(schema)


def _json(schema: dict[str, Any]) -> str:
    return (
        f"<pre>{escape(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())}</pre>"
    )
