"""The port to an agent, and the settings of an agent that a gateway serves.

An adapter has no rules. It reports what it sees, and does what it is asked once: it never repeats a
delivery that may have happened. Its settings come from the command line or the agent's manifest.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from holdfast.domains.gateway.state import AgentState, Question
from holdfast.kernel.agent_adapter import (
    AcpAdapter,
    AppServerAdapter,
    CommandAdapter,
    ManagedAdapter,
    RestAdapter,
    TmuxAdapter,
    Word,
    convert_settings,
)
from holdfast.kernel.errors import InvalidValue, NotFound


class Observation(NamedTuple):
    """What an adapter sees of the agent. Without an `instance_id` the agent is not there, and
    `detail` says why; `reason` is a code, set when the agent's terminal is there without its
    process. With an instance, `detail` says what a prompt has to wait for, and `activity` what the
    agent works on, such as a command that it runs. `session_id` is the agent's own name of the
    conversation, by which it can be resumed.
    """

    instance_id: str | None
    state: AgentState = AgentState.UNKNOWN
    detail: str = ""
    reason: str = ""
    questions: tuple[Question, ...] = ()
    activity: str = ""
    session_id: str | None = None


class Delivery(NamedTuple):
    """A delivered prompt; the adapter finds its answer by `handle`."""

    handle: Any = None


class Answer(NamedTuple):
    """The outcome of a delivered prompt.

    `known` is False when the agent took the prompt and nothing more can be learned. `code` is set
    when the agent failed, and `detail` says how. `source` says what the text is: stdout, output, or
    the screen's new text.
    """

    text: str = ""
    source: str = ""
    known: bool = True
    code: str | None = None
    detail: str = ""
    facts: dict[str, Any] = {}  # noqa: RUF012 - never changed; a NamedTuple's default is shared


class Adapter(ABC):
    """One agent."""

    backend: str
    """The kind of adapter, as a status shows it: tmux, command, acp, codex_app_server, cao_rest,
    houmao_server_rest or managed.
    """

    @abstractmethod
    def inspect(self) -> Observation:
        """Look at the agent. An instance id names one incarnation of it for ever: what replaces it
        under the same name has another id.

        Raises Held while another agent's gateway uses the same terminal.
        """

    @abstractmethod
    def check(self, prompt: str) -> None:
        """Raise InvalidValue for a prompt that could not be delivered unchanged."""

    @abstractmethod
    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        """Deliver a prompt to exactly that instance, without waiting for the answer. Where the
        agent reports what it receives, this waits for the report.

        Raises Fenced when another instance is there or it is not ready (nothing was delivered);
        NotReceived and Altered when the report is missing or another one; and UpstreamUnavailable,
        whose `outcome` says whether the prompt may have been delivered.
        """

    @abstractmethod
    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        """Wait for the answer; return early, with what there is, when `stop` is set."""

    @abstractmethod
    def interrupt(self, instance_id: str) -> bool:
        """Stop what the agent does. False when there was nothing to stop. Raises as `deliver`."""

    def reply(self, question_id: str, reply: str, instance_id: str) -> None:  # noqa: ARG002 - adapters without questions
        """Answer a question of that instance with the name of a choice, or with a text where the
        question takes one. Raises NotFound when the question is over, and as `interrupt`.
        """
        raise NotFound(
            f"there is no question {question_id[:60]}: it may be answered already",
            question_id=question_id[:128],
        )

    def listen(self, changed: Callable[[], None]) -> None:  # noqa: ARG002 - as above
        """Have `changed` called, in any thread, when another look at the agent would see something
        else. An adapter that cannot notice changes never calls it.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Release everything, and end the processes that the adapter started."""


class TmuxSpec(TmuxAdapter, frozen=True, kw_only=True, tag="tmux"):
    """An agent in the tmux session `session`."""

    session: str


class CommandSpec(CommandAdapter, frozen=True, kw_only=True, tag="command"):
    """A program that runs in `working_directory`, by default in the gateway's own."""

    working_directory: Word | None = None


class AcpSpec(AcpAdapter, frozen=True, kw_only=True, tag="acp"):
    """An agent that runs in `working_directory`, by default in the gateway's own."""

    working_directory: Word | None = None


class AppServerSpec(AppServerAdapter, frozen=True, kw_only=True, tag="codex_app_server"):
    """An agent that runs in `working_directory`, by default in the gateway's own."""

    working_directory: Word | None = None


AdapterSpec = TmuxSpec | CommandSpec | AcpSpec | AppServerSpec | RestAdapter | ManagedAdapter
IN_FOLDER = ("command", "acp", "codex_app_server")
"""The adapters that start the agent themselves, in a folder."""


def needed_by(kind: str) -> frozenset[str]:
    """The required settings of an adapter of this kind."""
    [spec] = [one for one in get_args(AdapterSpec) if one.__struct_config__.tag == kind]
    return frozenset(field.name for field in msgspec.structs.fields(spec) if field.required)


def spec_of_manifest(manifest: Mapping[str, Any]) -> AdapterSpec:
    """The settings under `adapter` in an agent's manifest. Raises InvalidValue, naming a wrong one.

    The tmux session and the working directory may also stand in the manifest itself; the adapter's
    own setting overrides them.
    """
    adapter = manifest.get("adapter")
    if not isinstance(adapter, Mapping):
        raise InvalidValue(
            "the manifest names no adapter: add `adapter` with its kind and settings",
            field="adapter",
        )
    settings, kind = dict(adapter), adapter.get("kind")
    tmux = manifest.get("tmux")
    if kind == "tmux" and isinstance(tmux, Mapping):
        settings.setdefault("session", tmux.get("session_name"))
    if kind in IN_FOLDER:
        settings.setdefault("working_directory", manifest.get("working_directory"))
    return spec_of(settings)


def spec_of(settings: Mapping[str, Any]) -> AdapterSpec:
    """Typed settings of an adapter. Raises InvalidValue for unknown, missing and wrong ones."""
    spec: AdapterSpec = convert_settings(settings, AdapterSpec)  # type: ignore[arg-type]
    return spec
