"""The OpenAPI of a server of ours."""

from litestar import Litestar


def say_strict(app: Litestar) -> None:
    """Say of every object that it has no further properties: our values refuse what they do not know, which the framework's
    schema leaves out."""
    for schema in (app.openapi_schema.components.schemas or {}).values():
        if schema.properties is not None:
            schema.additional_properties = False
