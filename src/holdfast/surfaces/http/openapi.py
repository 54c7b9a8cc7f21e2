"""The OpenAPI of a server of ours."""

from collections.abc import Iterable, Mapping

from litestar import Litestar
from litestar.openapi.spec import OpenAPI, OpenAPIType, Operation, Reference, RequestBody, Schema

_METHODS = ("get", "post", "put", "patch", "delete")


def say_strict(app: Litestar) -> None:
    """Say of every object that it has no further properties, which the framework's schema leaves
    out: our values refuse what they do not know. What it says of its own refusals of values is left
    out: they are answered as ours are. A body that may say nothing may be left out.
    """
    document = app.openapi_schema
    for schema in (document.components.schemas or {}).values():
        if schema.properties is not None:
            schema.additional_properties = False
    for path in (document.paths or {}).values():
        for operation in (getattr(path, method) for method in _METHODS):
            if isinstance(operation, Operation):
                (operation.responses or {}).pop("400", None)
                if isinstance(operation.request_body, RequestBody):
                    operation.request_body.required = _says_something(
                        document, operation.request_body
                    )


def say_one_of(app: Litestar, names: Iterable[str], fields: Mapping[str, OpenAPIType]) -> None:
    """Say of these objects that they have at least one of some optional fields."""
    for name in names:
        schema = (app.openapi_schema.components.schemas or {})[name]
        schema.any_of = [
            Schema(required=[field], properties={field: Schema(type=kind)})
            for field, kind in fields.items()
        ]


def _says_something(document: OpenAPI, body: RequestBody) -> bool:
    """Is there anything that a body must say?"""
    for media in body.content.values():
        schema = media.schema
        if isinstance(schema, Reference):
            schema = (document.components.schemas or {}).get(schema.ref.rpartition("/")[2])
        if not isinstance(schema, Schema) or schema.required or schema.properties is None:
            return True
    return False
