"""What users see without a store: OpenAPI, commands, help, MCP tools, statuses, Python names."""

import inspect
import json
import re
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, ForwardRef, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

import holdfast
from tests.frozen.inside import CommandLine, gateway_served, root_command, served
from tests.frozen.shape import indented

_PROSE = ("description", "summary", "title")
_HELP_COLUMNS = 100
_JSON_COLUMNS = 90


def openapi(folder: Path) -> dict[str, str]:
    """Return the OpenAPI of both servers."""
    with holdfast.connect(f"sqlite:{folder}/store.sqlite") as hf, served(hf) as server:
        whole = server.http.get("/schema/openapi.json").json()
    with gateway_served(folder / "gateway", work=False) as gateway:
        one = gateway.http.get("/schema/openapi.json").json()
    for document in (whole, one):
        # It has the version, which every release changes.
        del document["info"]
    return {"openapi.server.json": _document(whole), "openapi.gateway.json": _document(one)}


def _document(value: Any) -> str:
    return _written(_without_prose(value), "") + "\n"


def _written(value: Any, indent: str) -> str:
    """Write JSON with sorted keys. What fits into a line stays in it: fewer lines to read."""
    line = json.dumps(value, sort_keys=True)
    if len(indent) + len(line) < _JSON_COLUMNS or not isinstance(value, dict | list):
        return line
    more = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(more + _written(one, more) for one in value) + f"\n{indent}]"
    rows = [f"{more}{json.dumps(key)}: {_written(value[key], more)}" for key in sorted(value)]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def _without_prose(value: Any, *, names: bool = False) -> Any:
    """Leave descriptions out. With `names`, the keys are fields, of which one may be `title`."""
    if isinstance(value, dict):
        return {
            key: _without_prose(one, names=key in ("properties", "$defs", "schemas") and not names)
            for key, one in value.items()
            if names or key not in _PROSE or not isinstance(one, str)
        }
    return [_without_prose(one) for one in value] if isinstance(value, list) else value


def commands() -> dict[str, str]:
    """Return every command with its parameters, without prose."""
    lines: list[str] = []
    for context in _contexts():
        command = context.command
        lines.append("")
        lines.append(context.command_path + (" (hidden)" if command.hidden else ""))
        if not command.allow_interspersed_args and not isinstance(command, click.Group):
            lines.append("  options stop at the first argument")
        if command.ignore_unknown_options:
            lines.append("  unknown options pass")
        lines += indented(_parameter(parameter) for parameter in command.get_params(context))
    return {"commands.txt": "\n".join(lines[1:]) + "\n"}


def help_texts() -> dict[str, str]:
    """Return the help of every command, as a terminal of 100 columns shows it."""
    shown = [f"$ {one.command_path} --help\n{one.command.get_help(one)}\n" for one in _contexts()]
    return {"help.txt": "\n".join(shown)}


def _contexts() -> Iterator[click.Context]:
    def below(context: click.Context) -> Iterator[click.Context]:
        yield context
        if isinstance(context.command, click.Group):
            for name in context.command.list_commands(context):
                command = context.command.get_command(context, name)
                assert command is not None
                yield from below(_context(command, name, context))

    yield from below(_context(root_command, "holdfast", None))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    settings = {**command.context_settings, "terminal_width": _HELP_COLUMNS}
    return click.Context(command, parent, name, **settings)


def _parameter(parameter: click.Parameter) -> str:
    facts = parameter.to_info_dict()
    is_argument = facts["param_type_name"] == "argument"
    said = [f"argument {facts['name']}" if is_argument else " ".join(facts["opts"])]
    if facts["secondary_opts"]:
        said.append(f"/ {' '.join(facts['secondary_opts'])}")
    said.append(_type(facts["type"]) if not facts.get("is_flag") else "flag")
    said += [word for word in ("required", "multiple", "count", "hidden") if facts.get(word)]
    if facts["nargs"] != 1:
        said.append(f"nargs={facts['nargs']}")
    default = facts["default"]
    if default not in (None, False, ()) and not (facts.get("count") and default == 0):
        said.append(f"default={'computed' if callable(default) else _value(default)}")
    if facts["envvar"]:
        said.append(f"envvar={facts['envvar']}")
    return "  ".join(said)


def _type(facts: dict[str, Any]) -> str:
    """Name a parameter's type with its choices or bounds, and not by its class."""
    if "choices" in facts:
        return f"one of {' '.join(str(_value(one)) for one in facts['choices'])}"
    bounds = [
        f"{sign}{'' if facts.get(f'{end}_open') else '='}{facts[end]}"
        for end, sign in (("min", ">"), ("max", "<"))
        if facts.get(end) is not None
    ]
    words = ("exists", "file_okay", "dir_okay", "writable", "readable", "allow_dash")
    kept = [f"{word}={facts[word]}" for word in words if word in facts]
    return " ".join([facts["name"], *bounds, *kept])


def mcp(folder: Path) -> dict[str, str]:
    """Return the tools that an MCP client is shown, and how long that answer is."""
    calls = [
        (
            "initialize",
            {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "frozen", "version": "1"},
            },
        ),
        ("notifications/initialized", None),
        ("tools/list", {}),
    ]
    say = CommandLine(folder, HOLDFAST_STORE=f"sqlite:{folder}/store.sqlite")
    with say.start("mcp", "--as", "frozen", stdin=-1) as server:
        assert server.stdin is not None and server.stdout is not None
        for number, (method, parameters) in enumerate(calls):
            call: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
            if parameters is not None:
                call |= {"id": number, "params": parameters}
            server.stdin.write(json.dumps(call) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline() if parameters is not None else ""
        server.communicate()
    tools = json.loads(answer)["result"]["tools"]
    whole = json.dumps(tools, separators=(",", ":"), ensure_ascii=False)
    # Since 3.13 Python removes the indentation of docstrings, which some descriptions come from.
    size = len(re.sub(r"(\\n| )+", " ", whole).encode())
    return {"mcp.json": _document(tools), "mcp.size.txt": f"{len(tools)} tools, {size} bytes\n"}


def statuses() -> dict[str, str]:
    """Return the table of error codes."""
    errors: Any = holdfast.errors
    kinds = [
        one
        for one in vars(errors).values()
        if inspect.isclass(one) and issubclass(one, holdfast.HoldfastError)
    ]
    names = {one.code: one for one in kinds}
    lines = [f"{'code':<24} exit  http  exception (bases)"]
    for code, status in errors.STATUS.items():
        kind = names[code]
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        lines.append(f"{code:<24} {status.exit:>4}  {status.http}   {kind.__name__} ({bases})")
    assert set(names) == set(errors.STATUS)
    return {"statuses.txt": "\n".join(lines) + "\n"}


def python_names() -> dict[str, str]:
    """Return the public names of the package, and the public methods of what `connect` returns."""
    lines = ["holdfast"]
    for name in sorted(holdfast.__all__):
        lines += indented(_named(name, getattr(holdfast, name)))
    with holdfast.connect("memory:") as hf:
        lines += [
            "",
            "holdfast.connect()",
            *indented(f"{part}: {_attribute(hf, part)}" for part in _public(hf)),
        ]
        for part in (
            "jobs",
            "job_events",
            "agents",
            "locks",
            "holds",
            "network",
            "workflows",
            "log",
        ):
            lines += [
                "",
                f"holdfast.connect().{part}",
                *indented(_methods(type(getattr(hf, part)))),
            ]
        lines += ["", "holdfast.connect().gateway()", *indented(_methods(type(hf.gateway("gpu"))))]
    return {"python.txt": "\n".join(lines) + "\n"}


def _public(thing: object) -> list[str]:
    return [name for name in dir(thing) if not name.startswith("_")]


def _attribute(hf: object, name: str) -> str:
    kept = inspect.getattr_static(type(hf), name, None)
    return _signature(kept) if inspect.isfunction(kept) else type(getattr(hf, name)).__name__


def _named(name: str, value: Any) -> list[str]:
    if inspect.isfunction(value):
        return [f"{name}{_signature(value)}"]
    if not inspect.isclass(value):
        return [f"{name}: {type(value).__name__}"]
    if issubclass(value, Enum):
        return [f"{name}: {', '.join(f'{one.name}={one.value}' for one in value)}"]
    if issubclass(value, holdfast.HoldfastError):
        return [f"{name}: error {value.code}"]
    if issubclass(value, dict):
        # A TypedDict: its keys are options of calls.
        keys = get_type_hints(value).items()
        return [name, *indented(f"{key}: {_annotation(kind)}" for key, kind in keys)]
    return [f"{name}{_signature(value)}", *indented(_methods(value))]


def _methods(kind: type) -> Iterator[str]:
    for name in _public(kind):
        value = inspect.getattr_static(kind, name)
        if isinstance(value, staticmethod | classmethod):
            yield f"{name}{_signature(getattr(kind, name))} ({type(value).__name__})"
        elif inspect.isfunction(value):
            yield f"{name}{_signature(value)}"
        elif isinstance(value, property):
            assert value.fget is not None
            yield f"{name}: property{_signature(value.fget)}"
        else:
            yield f"{name}: attribute"


def _signature(value: Any) -> str:
    """Return a signature without modules' names, which move, and as every Python shows it."""
    signature = inspect.signature(value)
    said: list[str] = []
    before = None
    for parameter in signature.parameters.values():
        if before is parameter.POSITIONAL_ONLY and parameter.kind is not before:
            said.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and before not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            said.append("*")
        before = parameter.kind
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else stars
        kind = (
            ""
            if parameter.annotation is parameter.empty
            else f": {_annotation(parameter.annotation)}"
        )
        default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
        said.append(f"{stars}{parameter.name}{kind}{default}")
    if before is inspect.Parameter.POSITIONAL_ONLY:
        said.append("/")
    result = signature.return_annotation
    return f"({', '.join(said)})" + (
        "" if result is signature.empty else f" -> {_annotation(result)}"
    )


def _annotation(kind: Any) -> str:
    if isinstance(kind, ForwardRef):
        kind = kind.__forward_arg__
    if isinstance(kind, str):
        return kind
    if kind is None or kind is type(None):
        return "None"
    if kind is Ellipsis:
        return "..."
    if isinstance(kind, list):
        return f"[{', '.join(_annotation(one) for one in kind)}]"
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " | ".join(_annotation(one) for one in arguments)
    if origin is Literal:
        return f"Literal[{', '.join(_value(one) for one in arguments)}]"
    if arguments:
        name = getattr(kind, "_name", None) or getattr(origin, "__name__", "Annotated")
        return f"{name}[{', '.join(_annotation(one) for one in arguments)}]"
    if isinstance(kind, TypeVar):
        return kind.__name__
    return str(
        getattr(kind, "__name__", None) or getattr(kind, "_name", None) or type(kind).__name__
    )


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)
    if isinstance(value, tuple | list | frozenset | set | dict):
        return (
            repr(value) if not value else f"{type(value).__name__}({', '.join(map(_value, value))})"
        )
    return str(getattr(value, "__name__", None) or f"{type(value).__name__}()")
