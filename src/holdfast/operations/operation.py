"""An operation: a typed request, a typed result, a handler, and where it is exposed.

    class Requeue(Request, frozen=True, kw_only=True):
        '''The job to put back.'''

        job_id: Annotated[JobId, Positional()]
        token: Annotated[Token | None, Flag("--token", help="The token of the attempt.")] = None

    @operation("POST /v1/jobs/{job_id}/requeue", cli="jobs requeue", errors=(NotFound, Fenced))
    def requeue(hf: Holdfast, request: Requeue) -> JobView:
        '''Put a running job back for the next pick.'''
        return view_of(hf.jobs.requeue(request.job_id, token=request.token))

HTTP takes the fields that the path names from the path, and the others from the body of a POST or
from the query. The command line offers the fields that are annotated with `Flag` or `Positional`,
an MCP tool those with `Argument`. The docstring describes the operation on every surface. A handler
with a parameter `wait` may wait; one with `damaged` skips damaged records and reports them there.
HTTP offers what the list `OPERATIONS` of an area names.

Nothing here imports a web framework or a command line parser, and annotations are read on demand:
a command imports one area, and must start fast.
"""

import os
import re
import threading
from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Union,
    cast,
    get_args,
    get_origin,
)

import msgspec

from holdfast.kernel.codec import Plain, encodable, to_plain
from holdfast.kernel.errors import STATUS, HoldfastError

if TYPE_CHECKING:
    from holdfast.runtime.connection import Holdfast

Method = Literal["GET", "POST", "DELETE"]
Undo = Callable[["Holdfast", Any, "Wait"], None]

_PATH_FIELD = r"\{(\w+)\}"
_FROM_FIELD: Any = object()


class Request(Plain, frozen=True, kw_only=True):
    """What an operation takes. Surfaces check its bounds; the domain checks everything else.

    `one_of` are fields of which a request needs at least one, with the types that JSON schema
    calls them by; the domain refuses it otherwise.
    """

    one_of: ClassVar[dict[str, str]] = {}


class Nothing(Request, frozen=True, kw_only=True):
    """The request of an operation that takes none."""


class Positional(msgspec.Struct, frozen=True):
    """A field that the command line takes as an argument."""

    metavar: str | None = None
    """Shown in place of the field's name; None for the name in capitals."""


class Flag:
    """A field that the command line takes as an option.

    `default` and `within` (the least and the greatest value, or None for any) replace those of the
    field. `choose` makes it a switch: the value without it, and the value with it. With `unit_s`
    a number of other units than seconds is given, such as days. With `or_argument` the value may
    also be given as an argument, which the help does not mention.
    """

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        default: Any = _FROM_FIELD,
        show_default: bool = False,
        within: tuple[float | None, float | None] | None = _FROM_FIELD,
        choose: tuple[Any, Any] | None = None,
        envvar: str | None = None,
        unit_s: float | None = None,
        or_argument: bool = False,
    ) -> None:
        self.names = names
        self.help = help
        self.metavar = metavar
        self.default = default
        self.show_default = show_default
        self.within = within
        self.choose = choose
        self.envvar = envvar
        self.unit_s = unit_s
        self.or_argument = or_argument

    def default_of(self, field: msgspec.structs.FieldInfo) -> Any:
        """The default on the command line, or NODEFAULT for an option that must be given."""
        return field.default if self.default is _FROM_FIELD else self.default

    def bounds(
        self, least: float | None, most: float | None
    ) -> tuple[float | None, float | None] | None:
        """The least and the greatest value, where the field itself has these."""
        return (least, most) if self.within is _FROM_FIELD else self.within


class Argument(msgspec.Struct, eq=False):
    """A field that an MCP tool takes.

    `name`, `help` and `default` replace those of the field: a tool says `queue` and `timeout_s`
    where records of other programs say `agent_session` and `timeout_sec`. `choose` makes it a
    switch, as with `Flag`. `handle` is the kind of thing whose handle is accepted as well, such as
    `job`. `max_length` is shown and not enforced: the domain counts bytes.
    """

    help: str | None = None
    name: str | None = None
    default: Any = _FROM_FIELD
    choose: tuple[Any, Any] | None = None
    handle: str | None = None
    max_length: int | None = None

    def default_of(self, field: msgspec.structs.FieldInfo) -> Any:
        """The default for a tool, or NODEFAULT for an argument that must be given."""
        return field.default if self.default is _FROM_FIELD else self.default


class Stop:
    """A descriptor that becomes readable when a wait is to end. Any thread may set it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._closed = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """End the wait; harmless when it is over."""
        with self._mutex:
            if not self._closed:
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Close it when nobody waits with it any more."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                os.close(self.fd)

    __del__ = close


class Wait:
    """How a handler waits: what ends the wait early, and who learns that it has begun."""

    def __init__(
        self, *, stop_fd: int | None = None, on_wait: Callable[[Any], None] | None = None
    ) -> None:
        self.stop_fd = stop_fd
        """The wait ends when this descriptor is readable."""
        self.on_wait = on_wait

    @property
    def fields(self) -> dict[str, Any]:
        """Both, as the waiting methods of the library take them."""
        return {"on_wait": self.on_wait, "stop_fd": self.stop_fd}

    def issue(self, tokens: Iterable[int]) -> set[int]:  # noqa: ARG002 - for overriding
        """Return those of these grants that are being given back just now, and must not be issued.

        The caller has re-entered them. Only a server has clients that disconnect: here, none are.
        """
        return set()

    def take_back(self, token: int) -> bool:  # noqa: ARG002 - for overriding
        """Say whether a grant whose taker has gone may be released."""
        return True


class Operation:
    """One operation. Calling it runs the handler."""

    def __init__(
        self,
        handler: Callable[..., Any],
        http: str | None,
        *,
        cli: str | None,
        mcp: str | None,
        errors: tuple[type[HoldfastError], ...],
        outside: bool,
        undo: Undo | None,
    ) -> None:
        method, _, self.path = (http or "POST ").partition(" ")
        self.served = http is not None
        """HTTP has a route for it."""
        self.method = cast("Method", method)
        self.area = handler.__module__.rpartition(".")[2]
        self.name = f"{self.area}.{handler.__name__.strip('_')}"
        self.handler = handler
        self.cli = cli
        """The command, such as `jobs requeue`; None where the command line has none."""
        self.mcp = mcp
        """The tool, such as `retry_job`; None where agents have none."""
        self.errors = errors
        """The errors that it raises, beyond those that every operation may raise."""
        self.outside = outside
        """It talks to another program, which may take long."""
        self.undo = undo
        """Takes the effect back, given the result and the wait, when nobody receives the result."""
        code = handler.__code__
        parameters = code.co_varnames[: code.co_argcount]
        self.waits = "wait" in parameters
        self.skips_damaged = "damaged" in parameters
        hints = handler.__annotations__
        self.request: type[Request] = hints.get("request", Nothing)
        self.result: Any = hints["return"]

    def __call__(self, hf: Any, request: Request | None = None, /, **more: Any) -> Any:
        """Run the handler on a connection and return its result.

        `more` is `wait` and `damaged`, as the handler takes them.
        """
        if self.request is Nothing:
            return self.handler(hf, **more)
        return self.handler(hf, request, **more)

    @property
    def description(self) -> str:
        """What it does, in words."""
        return self.handler.__doc__ or ""

    @property
    def reads(self) -> bool:
        """It changes nothing that a caller would have to know of."""
        return self.method == "GET"

    @property
    def statuses(self) -> set[int]:
        """The HTTP statuses of `errors`."""
        return {STATUS[error.code].http for error in self.errors}

    @property
    def path_fields(self) -> tuple[str, ...]:
        """The fields that the path names."""
        return tuple(re.findall(_PATH_FIELD, self.path))

    @property
    def other_fields(self) -> list[msgspec.structs.FieldInfo]:
        """The fields that the path does not name."""
        fields = msgspec.structs.fields(self.request)
        return [field for field in fields if field.name not in self.path_fields]

    @property
    def has_body(self) -> bool:
        """HTTP takes a body for it."""
        return self.method == "POST" and bool(self.other_fields)


def unwrapped(kind: Any) -> tuple[Any, list[Any], bool]:
    """The type of a field without annotations and None; its annotations, the innermost first; and
    whether it may be None.
    """
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        bare, more, optional = unwrapped(inner)
        return bare, [*more, *notes], optional
    if get_origin(kind) in (Union, UnionType):
        # Of several types, one is None.
        bare, notes, _ = unwrapped(next(one for one in get_args(kind) if one is not NoneType))
        return bare, notes, True
    return kind, [], False


def json_fields(error: HoldfastError) -> dict[str, Any]:
    """The fields of an error as JSON; a text in place of what JSON cannot say."""
    fields: dict[str, Any] = {}
    for name, value in error.fields.items():
        try:
            fields[name] = to_plain(value)
        except (TypeError, ValueError):
            fields[name] = encodable(str(value))
    return fields


def unexpected(error: Exception) -> HoldfastError:
    """The error for a bug, as a client gets it: the message may hold what is not for everybody."""
    return HoldfastError(
        f"unexpected {type(error).__name__}: this is a bug; the server's log says where"
    )


def operation(
    http: str | None = None,
    *,
    cli: str | None = None,
    mcp: str | None = None,
    errors: tuple[type[HoldfastError], ...] = (),
    outside: bool = False,
    undo: Undo | None = None,
) -> Callable[[Callable[..., Any]], Operation]:
    """Make an operation of a handler. `http` is a method and a path; None without a route."""

    def make(handler: Callable[..., Any]) -> Operation:
        return Operation(handler, http, cli=cli, mcp=mcp, errors=errors, outside=outside, undo=undo)

    return make
