"""The types that requests are made of: bounds that surfaces enforce, and what a schema says.

Which names are possible is decided where they are used, with one error code for every surface. So
the patterns here only describe: a pattern enforced here would turn a wrong name into a wrong value.
"""

from typing import Annotated, Any, get_args

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

DAY_S = 86400.0
PID_MAX = 2**31 - 1
_NUMBER_MAX = 1 << 53
"""Every JSON reader represents whole numbers up to here exactly; tokens stay below."""


def described(description: str, **schema: Any) -> Meta:
    """A description, and parts of a JSON schema (by the names of OpenAPI) that are not enforced."""
    return Meta(extra_json_schema={"description": description, "extra": schema})


def at_least_zero(description: str, most: float) -> Meta:
    """A number from 0 on. The web framework leaves out a bound of 0 where None is possible too."""
    extra = {"description": description, "extra": {"minimum": 0}}
    return Meta(ge=0, le=most, extra_json_schema=extra)


def above_zero(description: str, most: float) -> Meta:
    """A number greater than 0."""
    extra = {"description": description, "extra": {"exclusive_minimum": 0}}
    return Meta(gt=0, le=most, extra_json_schema=extra)


def _text(description: str, pattern: str, most: int) -> Meta:
    return described(description, pattern=pattern, min_length=1, max_length=most)


_LABEL = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$"
_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_JOB = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$"
_AGENT = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"

_FREE = "free text without control characters; a new one has no invisible characters either"
"""Which characters those are is more than a pattern can say: see `kernel.text`."""

Label = Annotated[str, _text(f"Such as /dev/ttyUSB0: {_FREE}.", _LABEL, LABEL_CHARS_MAX)]
Resource = Annotated[str, _text(f"The resource's name: {_FREE}.", _LABEL, LABEL_CHARS_MAX)]
By = Annotated[str, _text(f"The job that holds or requests it: {_FREE}.", _LABEL, LABEL_CHARS_MAX)]
Id = Annotated[str, _text("An id.", _ID, ID_CHARS_MAX)]
JobId = Annotated[str, _text("The job's id.", _JOB, ID_CHARS_MAX)]
AgentName = Annotated[str, _text("The agent's name or id.", _AGENT, ID_CHARS_MAX)]
Text = Annotated[str, described("A text.")]
PathText = Annotated[
    str, described("An absolute path on the server's machine.", max_length=PATH_CHARS_MAX)
]

Token = Annotated[int, at_least_zero("The token that a claim was given.", _NUMBER_MAX)]
Count = Annotated[int, at_least_zero("A number.", _NUMBER_MAX)]
Pid = Annotated[
    int,
    Meta(
        ge=1, le=PID_MAX, description="A process on the server's machine; the claim ends with it."
    ),
]
Priority = Annotated[
    int, Meta(ge=-LOCK_PRIORITY_MAX, le=LOCK_PRIORITY_MAX, description="Higher goes first.")
]
Limit = Annotated[int, at_least_zero("At most this many.", LIST_MAX)]
Ttl = Annotated[float, above_zero("Seconds after which it ends, unless renewed.", LOCK_TTL_MAX_S)]
Seconds = Annotated[float, at_least_zero("Seconds.", LOCK_TTL_MAX_S)]
WaitSeconds = Annotated[
    float, at_least_zero("Seconds to wait for it; ask again for longer.", SERVER_WAIT_MAX_S)
]


def items(description: str, item: Any, most: int, least: int = 0) -> Meta:
    """A list of texts of one of the types above."""
    shown = get_args(item)[1].extra_json_schema["extra"]
    schema = {_OPENAPI.get(name, name): value for name, value in shown.items()}
    extra = {"items": {"type": "string", **schema}, "min_items": least}
    return Meta(
        min_length=least,
        max_length=most,
        extra_json_schema={"description": description, "extra": extra},
    )


_OPENAPI = {"min_length": "minLength", "max_length": "maxLength"}

Names = Annotated[list[str], items("The resources' names.", Resource, LOCK_NAMES_MAX, 1)]

QUEUE = ("--queue", "--agent-session")
"""The option of a queue on the command line. The second name is that of the source system."""
