"""An agent by its name, in a module that loads fast."""

from typing import Annotated

from holdfast.operations.fields import AgentName
from holdfast.operations.operation import Positional, Request


class AgentKey(Request, frozen=True, kw_only=True):
    """An agent, by its name or id."""

    agent: Annotated[AgentName, Positional()]
