"""An operation, written once: what it is asked, what it does and what it answers.

    @operation("POST", "/v1/jobs/{job_id}/requeue", problems=(404, 409, 412))
    def requeue(hf: Holdfast, asked: Requeue) -> JobView:
        '''Put a running job back for the next pick.'''
        return view_of(hf.jobs.requeue(asked.job_id, token=asked.token))

Fields of what is asked that the path names come from there; the others are the body of a POST, or
the query. Its docstring is its description. A third parameter `turn` makes it one that may wait,
`damaged` one that passes damaged records over.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_type_hints

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.runtime.connection import Holdfast

Method = Literal["GET", "POST", "DELETE"]
Undo = Callable[[Any, Any, Any], None]

_PARTS = re.compile(r"\{(\w+)\}")


class NoQuestion(Plain, frozen=True, kw_only=True):
    """Nothing is asked."""


class Operation(NamedTuple):
    """One operation of the server."""

    name: str
    method: Method
    path: str
    call: Callable[..., Any]
    asks: type[Plain]
    answers: Any
    problems: tuple[int, ...]
    more: frozenset[str]
    """Which of `turn` and `damaged` it wants."""
    outside: bool
    """It talks to another program, which may take its time."""
    undo: Undo | None
    """What takes its effect back, by its answer and its turn, when whoever asked has hung up
    meanwhile.
    """

    def run(self, hf: Holdfast, asked: Plain, **more: Any) -> Any:
        """Do it, and return the answer."""
        return self.call(hf, **more) if self.asks is NoQuestion else self.call(hf, asked, **more)

    @property
    def area(self) -> str:
        """What it is about."""
        return self.name.partition(".")[0]

    @property
    def in_path(self) -> tuple[str, ...]:
        """The fields that the path names."""
        return tuple(_PARTS.findall(self.path))

    @property
    def elsewhere(self) -> list[msgspec.structs.FieldInfo]:
        """The other fields."""
        return [
            field for field in msgspec.structs.fields(self.asks) if field.name not in self.in_path
        ]

    @property
    def has_body(self) -> bool:
        """Does it take a body?"""
        return self.method == "POST" and bool(self.elsewhere)


def operation(
    method: Method,
    path: str,
    *,
    problems: tuple[int, ...] = (),
    outside: bool = False,
    undo: Undo | None = None,
) -> Callable[[Callable[..., Any]], Operation]:
    """Make an operation of a function."""

    def made(call: Callable[..., Any]) -> Operation:
        hints = get_type_hints(call, include_extras=True)
        area, name = call.__module__.rpartition(".")[2], call.__name__.strip("_")
        parameters = set(inspect.signature(call).parameters)
        asks = hints.get("asked", NoQuestion)
        more = frozenset(parameters & {"turn", "damaged"})
        return Operation(
            f"{area}.{name}",
            method,
            path,
            call,
            asks,
            hints["return"],
            problems,
            more,
            outside,
            undo,
        )

    return made
