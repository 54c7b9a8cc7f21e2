"""The port to an agent, and the settings of each kind of adapter.

An adapter has no rules. It reports what it sees, and does what it is asked once: it never repeats a
delivery that may have happened. Its settings come from the command line or the agent's manifest.
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
    """What an adapter sees of the agent. Without an `instance_id` the agent is not there, and
    `detail` says why; `reason` is a code, set when the agent's terminal is there without its
    process. With an instance, `detail` says what a prompt has to wait for.
    """

    instance_id: str | None
    surface: Surface = Surface.UNKNOWN
    detail: str = ""
    reason: str = ""


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


class Adapter(Protocol):
    """One agent."""

    @property
    def backend(self) -> str:
        """The kind of adapter: tmux, command, cao_rest, houmao_server_rest or managed."""
        ...

    def inspect(self) -> Sighting:
        """Look at the agent. An instance id names one incarnation of it for ever: what replaces it
        under the same name has another id.

        Raises Held while another agent's gateway uses the same terminal.
        """
        ...

    def check(self, prompt: str) -> None:
        """Raise InvalidValue for a prompt that could not be delivered unchanged."""
        ...

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        """Deliver a prompt to exactly that instance, without waiting for the answer.

        Raises Fenced when another instance is there (nothing was delivered), and
        UpstreamUnavailable, whose `outcome` says whether the prompt may have been delivered.
        """
        ...

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        """Wait for the answer; return early, with what there is, when `stop` is set."""
        ...

    def interrupt(self, instance_id: str) -> bool:
        """Stop what the agent does. False when there was nothing to stop. Raises as `deliver`."""
        ...

    def close(self) -> None:
        """Release everything, and end the processes that the adapter started."""
        ...


ANSWER_TIMEOUT_S = 3600.0
QUIET_MS = 400
SETTLE_S = 10.0

Patience = Annotated[float, msgspec.Meta(gt=0, le=GATEWAY_PATIENCE_MAX_S)]
Word = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]
"""A program's argument ends at a zero byte."""


class TmuxSpec(Plain, frozen=True, kw_only=True, tag_field="kind", tag="tmux"):
    """An agent in a tmux session. It is ready when the last line matches `ready_regex` and the
    screen did not change for `quiet_ms`.

    Without `ready_regex` the end of its work cannot be seen: a request ends with its delivery, and
    the next prompt is typed when the screen did not change for `settle_s`.
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
    """A program that runs once for each prompt. It gets the prompt on standard input or as its last
    argument.
    """

    argv: tuple[Word, ...]
    prompt_as: Literal["stdin", "argument"] = "stdin"
    working_directory: Word | None = None
    answer_timeout_s: Patience = ANSWER_TIMEOUT_S


class RestSpec(Plain, frozen=True, kw_only=True, tag_field="kind", tag="rest"):
    """A terminal behind CAO's API. `prefix` and `paths` (`terminal`, `input`, `key`, `output`, each
    with `{id}` for the terminal's id) are for servers that offer the same at other paths.
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

_MANIFEST_NAMES = {
    "tmux": {"interrupt": "interrupt_key"},
    "command": {"command": "argv", "timeout_s": "answer_timeout_s"},
    "rest": {"base_url": "url", "terminal_id": "terminal"},
}
"""Settings that have another name in a manifest."""
_PRESETS = {"cao": "cao_rest", "houmao_server": "houmao_server_rest"}


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
    kind = str(adapter.get("kind"))
    names = _MANIFEST_NAMES.get(kind, {})
    settings: dict[str, Any] = {names.get(name) or name: value for name, value in adapter.items()}
    if kind == "rest" and settings.get("preset") in _PRESETS:
        settings["preset"] = _PRESETS[settings["preset"]]
    tmux = manifest.get("tmux")
    if kind == "tmux" and "session" not in settings and isinstance(tmux, Mapping):
        settings["session"] = tmux.get("session_name")
    if kind == "command" and "working_directory" not in settings:
        settings["working_directory"] = manifest.get("working_directory")
    return spec_of(settings)


def spec_of(settings: Mapping[str, Any]) -> AdapterSpec:
    """Typed settings of an adapter. Raises InvalidValue for unknown, missing and wrong ones."""
    try:
        spec: AdapterSpec = msgspec.convert(dict(settings), AdapterSpec)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"the adapter's settings are wrong: {error}", field="adapter") from None
    return spec
