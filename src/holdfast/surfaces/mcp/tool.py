"""Tools made from operations.

The arguments of a tool are the fields of the operation's request that are annotated with
`Argument`, and the keyword parameters of the function, which MCP adds:

    @tool(jobs.retry)
    def retry_job(session: Session, call: Call, request: JobKey) -> ToolResult:
        '''Repeat a job that ended in error or was cancelled.'''

The docstring is the description for the model. A function without `request` takes no field.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue, NotFound
from holdfast.kernel.limits import MCP_WAIT_MAX_S
from holdfast.operations.operation import Argument, Flag, Operation, Request
from holdfast.surfaces.mcp.call import Call
from holdfast.surfaces.mcp.claims import HANDLES, Session

ToolResult = dict[str, Any]

WaitS = Annotated[
    float,
    Meta(ge=0, le=MCP_WAIT_MAX_S, description="Seconds to wait in this call."),
]
HandleText = Annotated[
    str, Meta(min_length=1, max_length=400, description="A handle from another answer.")
]


class Tool:
    """One tool."""

    def __init__(
        self,
        run: Callable[..., ToolResult],
        operation: Operation | None,
        *,
        reads: bool,
        repeatable: bool,
    ) -> None:
        parameters = inspect.signature(run).parameters
        self.name = run.__name__
        self.operation = operation
        self.text = " ".join((run.__doc__ or "").split())
        self.reads = reads
        """It changes nothing."""
        self.repeatable = reads or repeatable
        """A second call with the same arguments is harmless."""
        self._run = run
        self._request: type[Request] | None = None
        self._fields: dict[str, Argument] = {}
        self._help: dict[str, str] = {}
        self.argument_of: dict[str, str] = {}
        """The arguments that come from the operation's request, by the field."""
        arguments: list[Any] = []
        if operation is not None and "request" in parameters:
            self._request = operation.request
            for field in msgspec.structs.fields(operation.request):
                notes = getattr(field.type, "__metadata__", ())
                for argument in (one for one in notes if isinstance(one, Argument)):
                    name = self.argument_of[field.name] = argument.name or field.name
                    self._fields[name] = argument
                    self._help[name] = argument.help or _help(notes)
                    arguments.append((name, *_type_and_default(field, argument)))
        self._own = [
            one.name for one in parameters.values() if one.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        for one in (parameters[name] for name in self._own):
            default = msgspec.NODEFAULT if one.default is one.empty else one.default
            arguments.append((one.name, one.annotation, default))
        self.arguments = msgspec.defstruct(
            self.name, arguments, bases=(Plain,), frozen=True, kw_only=True
        )

    def __call__(self, session: Session, call: Call, given: Mapping[str, Any]) -> ToolResult:
        """Run it with the model's arguments. Raises InvalidValue, naming the argument."""
        try:
            arguments = msgspec.convert(dict(given), self.arguments)
        except msgspec.ValidationError as error:
            known = ", ".join(self.arguments.__struct_fields__) or "none"
            raise InvalidValue(
                f"{self.name}: {error}. Its arguments are: {known}", tool=self.name
            ) from None
        own = {name: getattr(arguments, name) for name in self._own}
        if self._request is None:
            return self._run(session, call, **own)
        values = {
            field: _value(self._fields[name], getattr(arguments, name))
            for field, name in self.argument_of.items()
        }
        return self._run(session, call, self._whole(session, self._request, values), **own)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments, as short as it can be: a model reads all of it."""
        [root], parts = msgspec.json.schema_components([self.arguments], ref_template="{name}")
        whole = parts[root["$ref"]]
        properties = {
            name: _property(schema, self._fields.get(name), self._help.get(name))
            for name, schema in whole["properties"].items()
        }
        short = {"type": "object", "properties": properties, "additionalProperties": False}
        return short | ({"required": whole["required"]} if whole["required"] else {})

    def _whole(self, session: Session, kind: type[Request], values: dict[str, Any]) -> Request:
        """The request, with what the server supplies: who claims, and for which process."""
        if "/" in (values.get("request_id") or ""):
            # The handle of a request names its agent too.
            values["agent"], _, values["request_id"] = values["request_id"].partition("/")
        for field in msgspec.structs.fields(kind):
            if field.required and values.get(field.name) is None:
                if field.name not in _SUPPLIED:
                    name = field.name
                    raise InvalidValue(f"{self.name}: give {name} as well, or a handle", field=name)
                values[field.name] = _SUPPLIED[field.name](session)
        return kind(**values)


def tool(
    operation: Operation | None = None, *, reads: bool = False, repeatable: bool = False
) -> Callable[[Callable[..., ToolResult]], Tool]:
    """Make a tool of a function, for an operation or as one that only MCP has."""
    return partial(Tool, operation=operation, reads=reads, repeatable=repeatable)


def behind(value: str, kind: str) -> str:
    """The id behind a handle of this kind, or the id itself. Raises NotFound for another handle."""
    given, colon, name = value.partition(":")
    if not colon or given not in HANDLES:
        return value
    if given != kind:
        raise NotFound(
            f"{value} is the handle of a {given}: give that of a {kind}, as {HANDLES[kind]} "
            "returns it",
            handle=value,
        )
    return name


_SUPPLIED: dict[str, Callable[[Session], Any]] = {
    "by": lambda session: session.me.by,
    "pid": lambda _: os.getpid(),
    "name": lambda session: session.new_handle(session.me.name).replace(":", "-"),
}


def _help(notes: Iterable[Any]) -> str:
    """What the command line says of a field, without its default, which may name other options."""
    return next((one.help.partition("  [")[0] for one in notes if isinstance(one, Flag)), "")


def _type_and_default(field: msgspec.structs.FieldInfo, argument: Argument) -> tuple[Any, Any]:
    if argument.choose is not None:
        return bool, False
    default = argument.default_of(field)
    return (field.type | None if default is None and field.required else field.type), default


def _value(argument: Argument, value: Any) -> Any:
    if argument.choose is not None:
        return argument.choose[value]
    return value if argument.handle is None or value is None else behind(value, argument.handle)


def _property(
    schema: dict[str, Any], argument: Argument | None, help: str | None
) -> dict[str, Any]:
    """One argument. Null is left out: what is optional need not be given."""
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    short = schema | (kinds[0] if len(kinds) == 1 else {})
    short = {name: value for name, value in short.items() if name not in ("anyOf", "extra")}
    if "items" in short:
        short["items"] = {"type": short["items"]["type"]}
    if short.get("default", "") is None:
        del short["default"]
    if help:
        short["description"] = help
    if argument is not None and argument.max_length is not None:
        short["maxLength"] = argument.max_length
    return short
