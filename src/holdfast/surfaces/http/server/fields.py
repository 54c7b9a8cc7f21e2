"""The fields that requests are made of, and what the OpenAPI says of them.

What a name may be is decided where it is used, with the code that every surface has for it. So
these only tell of it: a pattern that was enforced here would make a wrong name a wrong value.
"""

from typing import Annotated, Any, get_args

from litestar.openapi.spec import OpenAPIType, Schema
from msgspec import Meta

from holdfast.kernel.limits import (
    ID_CHARS_MAX,
    LABEL_CHARS_MAX,
    LIST_MAX,
    LOCK_NAMES_MAX,
    LOCK_PRIORITY_MAX,
    LOCK_TTL_MAX_S,
    PATH_CHARS_MAX,
    SERVER_WAIT_MAX_S,
)
from holdfast.surfaces.cli.quick import PID_MAX

_NUMBER_MAX = 1 << 53
"""Up to here every program that reads JSON knows each number; tokens stay below."""


def told(words: str, **schema: Any) -> Meta:
    """What the OpenAPI says of a field, which nothing here enforces."""
    return Meta(extra_json_schema={"description": words, "extra": schema})


def _text(words: str, pattern: str, most: int) -> Meta:
    return told(words, pattern=pattern, min_length=1, max_length=most)


def from_nothing(words: str, most: float) -> Meta:
    """A number from 0 on. Of a value that may be left out, the framework would not tell a bound
    that is 0.
    """
    return Meta(ge=0, le=most, extra_json_schema={"description": words, "extra": {"minimum": 0}})


def _more_than_nothing(words: str, most: float) -> Meta:
    return Meta(
        gt=0, le=most, extra_json_schema={"description": words, "extra": {"exclusive_minimum": 0}}
    )


_LABEL = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_JOB = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$"
_AGENT = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"

_FREE = "free text without control characters; a new one has no invisible characters either"
"""Which those are is more than a pattern can say: see `kernel.text`."""

Label = Annotated[str, _text(f"Such as /dev/ttyUSB0: {_FREE}.", _LABEL, LABEL_CHARS_MAX)]
Resource = Annotated[str, _text(f"The resource's name: {_FREE}.", _LABEL, LABEL_CHARS_MAX)]
By = Annotated[
    str, _text(f"The job that holds it, or asks for it: {_FREE}.", _LABEL, LABEL_CHARS_MAX)
]
Id = Annotated[str, _text("An id.", _ID, ID_CHARS_MAX)]
JobId = Annotated[str, _text("The job's id.", _JOB, ID_CHARS_MAX)]
AgentName = Annotated[str, _text("The agent's name or id.", _AGENT, ID_CHARS_MAX)]
Text = Annotated[str, told("A text.")]
PathText = Annotated[
    str, told("An absolute path on the server's machine.", max_length=PATH_CHARS_MAX)
]

Token = Annotated[int, from_nothing("The token that a claim was given.", _NUMBER_MAX)]
Count = Annotated[int, from_nothing("A number.", _NUMBER_MAX)]
Pid = Annotated[
    int,
    Meta(ge=1, le=PID_MAX, description="A process on the server's machine, with which it ends."),
]
Priority = Annotated[
    int, Meta(ge=-LOCK_PRIORITY_MAX, le=LOCK_PRIORITY_MAX, description="Higher goes first.")
]
Limit = Annotated[int, from_nothing("At most this many.", LIST_MAX)]
Ttl = Annotated[
    float,
    _more_than_nothing("Seconds after which it ends by itself, unless renewed.", LOCK_TTL_MAX_S),
]
Seconds = Annotated[float, from_nothing("Seconds.", LOCK_TTL_MAX_S)]
Wait = Annotated[
    float, from_nothing("Seconds to wait for it; ask again for longer.", SERVER_WAIT_MAX_S)
]


def listed(words: str, item: Any, most: int, least: int = 0) -> Meta:
    """What is said of a list of texts."""
    said = get_args(item)[1].extra_json_schema["extra"]
    told_of = {"items": Schema(type=OpenAPIType.STRING, **said), "min_items": least}
    return Meta(
        min_length=least,
        max_length=most,
        extra_json_schema={"description": words, "extra": told_of},
    )


Names = Annotated[list[str], listed("The resources' names.", Resource, LOCK_NAMES_MAX, 1)]
