"""The port to an agent: look at it, hand it a prompt, wait for its answer, interrupt it.

An adapter holds no rule. It says what it sees and does what it is told, once: it never repeats a delivery that may have
happened.
"""

import enum
import threading
from typing import Any, NamedTuple, Protocol


class Surface(enum.StrEnum):
    """May a prompt be given to the agent at this moment?"""

    READY = "ready"
    NOT_READY = "not_ready"
    UNKNOWN = "unknown"


class Sighting(NamedTuple):
    """What is seen of an agent. `instance_id` None: it is not there, and `detail` says why; `reason` is set when its place is
    there, and its own process is not in it. With an instance, `detail` says what a prompt has to wait for."""

    instance_id: str | None
    surface: Surface = Surface.UNKNOWN
    detail: str = ""
    reason: str = ""


class Delivery(NamedTuple):
    """A prompt that was handed over; `handle` is whatever the adapter needs to find its answer."""

    handle: Any = None


class Answer(NamedTuple):
    """What became of a delivered prompt.

    `known` is False where the agent took the prompt and nothing more can be learned. `code` is set where the agent itself
    failed, and `detail` says how. `source` says what the text is: stdout, output, or the screen's new text.
    """

    text: str = ""
    source: str = ""
    known: bool = True
    code: str | None = None
    detail: str = ""
    facts: dict[str, Any] = {}  # noqa: RUF012 - never changed; a NamedTuple's default is shared


class Adapter(Protocol):
    """One agent."""

    @property
    def backend(self) -> str:
        """What kind of agent it is: tmux, command, cao_rest, houmao_server_rest or managed."""
        ...

    def inspect(self) -> Sighting:
        """Look at the agent. An instance id names one life of it for ever: what replaces it under the same name has another.

        Raises Held while the gateway of another has it.
        """
        ...

    def check(self, prompt: str) -> None:
        """Refuse, with InvalidValue, a prompt that could not be delivered as it is."""
        ...

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        """Hand a prompt to that very instance, in moments.

        Raises Fenced when another instance is there (nothing was handed over), and UpstreamUnavailable whose `outcome` says
        whether something may have been.
        """
        ...

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        """Wait for the answer; end early, with what there is, when `stop` is set."""
        ...

    def interrupt(self, instance_id: str) -> bool:
        """Stop what the agent does, at once. False when there was nothing to stop. Raises as `deliver` does."""
        ...

    def close(self) -> None:
        """Let go of everything, and end what the adapter itself has begun."""
        ...
