"""A tool: its words for the model, its schemas, and how its arguments are read."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import MCP_WAIT_MAX_S
from holdfast.surfaces.mcp.answers import Answer
from holdfast.surfaces.mcp.cancellation import Call

if TYPE_CHECKING:
    from holdfast.surfaces.mcp.claims import Hand

WaitS = Annotated[
    float,
    msgspec.Meta(
        ge=0,
        le=MCP_WAIT_MAX_S,
        description=(
            f"Seconds to wait in this call, at most {MCP_WAIT_MAX_S:g}; call again to go on."
        ),
    ),
]
Handle = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=160, description="A handle that another call gave you."),
]


class Tool(NamedTuple):
    """One tool. `call` is given what is in hand, the arguments and the call, in a thread of its
    own.
    """

    name: str
    words: str
    takes: type[Plain]
    gives: type[Answer]
    call: "Callable[[Hand, Any, Call], Answer]"
    only_looks: bool = False
    again_is_harmless: bool = False

    def arguments(self, given: Mapping[str, Any]) -> Plain:
        """What the model gave, if it is right. Raises InvalidValue, naming the field."""
        try:
            return msgspec.convert(dict(given), self.takes)
        except msgspec.ValidationError as error:
            known = ", ".join(self.takes.__struct_fields__) or "none"
            raise InvalidValue(
                f"{self.name}: {error}. Its arguments are: {known}", tool=self.name
            ) from None

    @property
    def takes_schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return _schema(self.takes)

    @property
    def gives_schema(self) -> dict[str, Any]:
        """The JSON schema of what comes back."""
        return _schema(self.gives)


def _schema(kind: type[Plain]) -> dict[str, Any]:
    """A schema whose root is the object itself, as the protocol asks."""
    [root], parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    own = dict(parts.pop(root["$ref"].rpartition("/")[2]))
    return {**own, "$defs": parts} if parts else own
