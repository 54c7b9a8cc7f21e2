"""What an agent does at this moment, and what it asks its operator."""

import enum
from typing import Literal

from holdfast.kernel.codec import Instant, Value


class AgentState(enum.StrEnum):
    """What an agent does. Only a READY agent gets a prompt.

    UNKNOWN: nothing tells. STARTING: it has not shown yet that it takes prompts. DRAFT: its input
    box has a text that somebody typed. ASKING: it waits for a decision of its operator. EXITED: its
    process has ended, or it failed.
    """

    UNKNOWN = "unknown"
    STARTING = "starting"
    READY = "ready"
    WORKING = "working"
    ASKING = "asking"
    DRAFT = "draft"
    EXITED = "exited"


class Choice(Value, frozen=True, kw_only=True):
    """One way to answer a question. `name` is what an operator writes."""

    name: str
    label: str


class Question(Value, frozen=True, kw_only=True):
    """A question of an agent.

    `subject` says in a line what it is about, such as a command that it wants to run; `detail` has
    all of it. Without `choices` it can only be answered in the agent's own terminal. `free_text`:
    any other text is an answer too. Without an answer until `expires_at`, the agent's own dialog
    decides, or the answer is no where it has none.
    """

    question_id: str
    kind: Literal["permission", "choice", "dialog"]
    subject: str
    detail: str = ""
    choices: tuple[Choice, ...] = ()
    free_text: bool = False
    asked_at: Instant
    expires_at: Instant | None = None


ALLOW = Choice(name="allow", label="Allow it, this once")
DENY = Choice(name="deny", label="Refuse it")
