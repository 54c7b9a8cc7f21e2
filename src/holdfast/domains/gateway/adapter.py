"""The port to an agent: look at it, hand it a prompt, wait for its answer, interrupt it.

An adapter holds no rule. It says what it sees and does what it is told, once: it never repeats a
delivery that may have happened.

Which adapter an agent has, with which settings: a value, from the command line or from the agent's
manifest.
"""

import enum
import threading
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol, get_args

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import GATEWAY_PATIENCE_MAX_S


class Surface(enum.StrEnum):
    """May a prompt be given to the agent at this moment?"""

    READY = "ready"
    NOT_READY = "not_ready"
    UNKNOWN = "unknown"


class Sighting(NamedTuple):
    """What is seen of an agent. `instance_id` None: it is not there, and `detail` says why;
    `reason` is set when its place is there, and its own process is not in it. With an instance,
    `detail` says what a prompt has to wait for.
    """

    instance_id: str | None
    surface: Surface = Surface.UNKNOWN
    detail: str = ""
    reason: str = ""


class Delivery(NamedTuple):
    """A prompt that was handed over; `handle` is whatever the adapter needs to find its answer."""

    handle: Any = None


class Answer(NamedTuple):
    """What became of a delivered prompt.

    `known` is False where the agent took the prompt and nothing more can be learned. `code` is set
    where the agent itself failed, and `detail` says how. `source` says what the text is: stdout,
    output, or the screen's new text.
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
        """Look at the agent. An instance id names one life of it for ever: what replaces it under
        the same name has another.

        Raises Held while the gateway of another has it.
        """
        ...

    def check(self, prompt: str) -> None:
        """Refuse, with InvalidValue, a prompt that could not be delivered as it is."""
        ...

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        """Hand a prompt to that very instance, in moments.

        Raises Fenced when another instance is there (nothing was handed over), and
        UpstreamUnavailable whose `outcome` says whether something may have been.
        """
        ...

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        """Wait for the answer; end early, with what there is, when `stop` is set."""
        ...

    def interrupt(self, instance_id: str) -> bool:
        """Stop what the agent does, at once. False when there was nothing to stop. Raises as
        `deliver` does.
        """
        ...

    def close(self) -> None:
        """Let go of everything, and end what the adapter itself has begun."""
        ...


ANSWER_TIMEOUT_S = 3600.0
QUIET_MS = 400
SETTLE_S = 10.0

Patience = Annotated[float, msgspec.Meta(gt=0, le=GATEWAY_PATIENCE_MAX_S)]
Word = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]
"""What a program can be given: its arguments end where they have a zero."""


class TmuxSpec(Plain, frozen=True, kw_only=True, tag_field="kind", tag="tmux"):
    """An agent in a tmux session. It is ready when the last line matches `ready_regex` and nothing
    was written for `quiet_ms`.

    Without `ready_regex` nobody knows when it has finished: a request ends with its delivery, and
    the next prompt is typed when nothing was written for `settle_s`.
    """

    session: str
    socket_name: str | None = None
    socket_path: str | None = None
    interrupt_key: Literal["C-c", "Escape"] = "C-c"
    quiet_ms: Annotated[int, msgspec.Meta(ge=1, le=int(GATEWAY_PATIENCE_MAX_S) * 1000)] = QUIET_MS
    ready_regex: str | None = None
    settle_s: Patience = SETTLE_S
    answer_timeout_s: Patience = ANSWER_TIMEOUT_S


class CommandSpec(Plain, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """A program that is run once for each prompt, which it gets on its standard input or as its
    last argument.
    """

    argv: tuple[Word, ...]
    prompt_as: Literal["stdin", "argument"] = "stdin"
    working_directory: Word | None = None
    answer_timeout_s: Patience = ANSWER_TIMEOUT_S


class RestSpec(Plain, frozen=True, kw_only=True, tag_field="kind", tag="rest"):
    """A terminal served by CAO's API, or by one that serves the same under a prefix of its own, or
    under other `paths`: of `terminal`, `input`, `key` and `output`, each with `{id}` for the
    terminal's id.
    """

    url: str
    terminal: str
    preset: Literal["cao_rest", "houmao_server_rest"] = "cao_rest"
    prefix: str | None = None
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    interrupt_key: str = "C-c"
    timeout_s: Patience = 10.0
    answer_timeout_s: Patience = ANSWER_TIMEOUT_S


class ManagedSpec(Plain, frozen=True, kw_only=True, tag_field="kind", tag="managed"):
    """A headless agent that another server owns."""

    managed_api_base_url: str
    managed_agent_ref: str
    timeout_s: Patience = 10.0
    answer_timeout_s: Patience = ANSWER_TIMEOUT_S


AdapterSpec = TmuxSpec | CommandSpec | RestSpec | ManagedSpec

_CALLED = {
    "tmux": {"interrupt": "interrupt_key"},
    "command": {"command": "argv", "timeout_s": "answer_timeout_s"},
    "rest": {"base_url": "url", "terminal_id": "terminal"},
}
"""What a manifest calls some of an adapter's settings."""
_PRESETS = {"cao": "cao_rest", "houmao_server": "houmao_server_rest"}


def needed_by(kind: str) -> frozenset[str]:
    """The fields without which an adapter of this kind reaches nobody."""
    [spec] = [one for one in get_args(AdapterSpec) if one.__struct_config__.tag == kind]
    return frozenset(field.name for field in msgspec.structs.fields(spec) if field.required)


def spec_of_manifest(manifest: Mapping[str, Any]) -> AdapterSpec:
    """The adapter that an agent's manifest names, under `adapter`. Raises InvalidValue, naming what
    is wrong.

    Where the manifest says more than once what the adapter must know (the tmux session, the working
    directory), the adapter's own setting counts.
    """
    adapter = manifest.get("adapter")
    if not isinstance(adapter, Mapping):
        raise InvalidValue(
            "the manifest names no adapter: add `adapter` with its kind and settings",
            field="adapter",
        )
    kind = str(adapter.get("kind"))
    called = _CALLED.get(kind, {})
    settings: dict[str, Any] = {called.get(name) or name: value for name, value in adapter.items()}
    if kind == "rest" and settings.get("preset") in _PRESETS:
        settings["preset"] = _PRESETS[settings["preset"]]
    tmux = manifest.get("tmux")
    if settings.get("kind") == "tmux" and "session" not in settings and isinstance(tmux, Mapping):
        settings["session"] = tmux.get("session_name")
    if settings.get("kind") == "command" and "working_directory" not in settings:
        settings["working_directory"] = manifest.get("working_directory")
    return spec_of(settings)


def spec_of(settings: Mapping[str, Any]) -> AdapterSpec:
    """An adapter's settings as a value. Raises InvalidValue for unknown, missing and wrong ones."""
    try:
        spec: AdapterSpec = msgspec.convert(dict(settings), AdapterSpec)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"the adapter's settings are wrong: {error}", field="adapter") from None
    return spec
