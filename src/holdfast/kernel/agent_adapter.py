"""How an agent is reached: the settings of each kind of adapter, as `adapter` in its manifest has
them. A setting that is UNSET is not written there, and has the default below.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import GATEWAY_PATIENCE_MAX_S, LABEL_CHARS_MAX, PATH_CHARS_MAX

ANSWER_TIMEOUT_S = 3600.0
QUESTION_TIMEOUT_S = 3600.0
QUESTION_FIRST_S = 120.0
"""The same where the tool's own dialog opens only after it: a person at the terminal waits too."""
QUIET_MS = 400
SETTLE_S = 10.0
HTTP_TIMEOUT_S = 10.0

T = TypeVar("T")

# The cheapest pattern that refuses blank texts, as it runs whenever an agent's record is read.
Text = Annotated[str, Meta(pattern=r"\S", max_length=LABEL_CHARS_MAX)]
PathText = Annotated[str, Meta(pattern=r"\S", max_length=PATH_CHARS_MAX)]
Word = Annotated[str, Meta(pattern=r"^[^\x00]*$")]
"""A program's argument ends at a zero byte."""
Url = Annotated[str, Meta(pattern=r"^https?://[^\s\x00-\x1f]+\Z", max_length=2048)]
Patience = Annotated[float, Meta(gt=0, le=GATEWAY_PATIENCE_MAX_S)]
Milliseconds = Annotated[int, Meta(ge=1, le=int(GATEWAY_PATIENCE_MAX_S) * 1000)]


class TmuxAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="tmux"):
    """The agent runs in a tmux session.

    `profile` names the tool that it is: its profile says how the screen looks when the agent is
    ready. `reports` is the folder in which the tool's own hooks report what it does. Without a
    profile, the agent is ready when the last line matches `ready_regex` and the screen did not
    change for `quiet_ms`. Without `ready_regex` too, the end of its work is not seen: the next
    prompt is typed when the screen did not change for `settle_s`.
    """

    profile: Text | UnsetType = UNSET
    reports: PathText | UnsetType = UNSET
    question_timeout_s: Patience | UnsetType = UNSET

    interrupt: Literal["C-c", "Escape"] = "C-c"
    quiet_ms: Milliseconds = QUIET_MS
    ready_regex: Text | None = None
    socket_name: Text | UnsetType = UNSET
    socket_path: PathText | UnsetType = UNSET
    answer_timeout_s: Patience | UnsetType = UNSET
    settle_s: Patience | UnsetType = UNSET

    def __post_init__(self) -> None:
        try:
            re.compile(self.ready_regex or "")
        except re.error as error:
            raise ValueError(
                f"ready_regex {self.ready_regex!r} is no regular expression: {error}"
            ) from None


class CommandAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """The agent is a program that runs once for each prompt, which it reads as `prompt_as` says."""

    command: Annotated[tuple[Word, ...], Meta(min_length=1)]
    prompt_as: Literal["stdin", "argument"] = "stdin"
    timeout_s: Patience = ANSWER_TIMEOUT_S


class AcpAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="acp"):
    """The agent is a program that speaks the Agent Client Protocol on its standard input and
    output. The gateway runs it. `session_id` is a conversation to go on with. `environment` is the
    file with the variables that it is started with; without one, they are the gateway's own.
    """

    command: Annotated[tuple[Word, ...], Meta(min_length=1)]
    profile: Text | UnsetType = UNSET
    session_id: Text | UnsetType = UNSET
    mode: Text | UnsetType = UNSET
    environment: PathText | UnsetType = UNSET
    answer_timeout_s: Patience = ANSWER_TIMEOUT_S
    question_timeout_s: Patience = QUESTION_TIMEOUT_S


class AppServerAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="codex_app_server"):
    """The agent is `codex app-server`, or a program that speaks its protocol. The gateway runs it.
    `session_id` is a thread to go on with, and `environment` as for `AcpAdapter`.
    """

    command: Annotated[tuple[Word, ...], Meta(min_length=1)]
    profile: Text | UnsetType = UNSET
    session_id: Text | UnsetType = UNSET
    environment: PathText | UnsetType = UNSET
    answer_timeout_s: Patience = ANSWER_TIMEOUT_S
    question_timeout_s: Patience = QUESTION_TIMEOUT_S


class RestAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="rest"):
    """The agent is behind a terminal of another server, with the API of CAO (CLI Agent
    Orchestrator) or a similar one.
    """

    base_url: Url
    terminal_id: Text
    preset: Literal["cao", "houmao_server"] = "cao"
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    prefix: str | UnsetType = UNSET
    interrupt_key: Text | UnsetType = UNSET
    timeout_s: Patience | UnsetType = UNSET
    answer_timeout_s: Patience | UnsetType = UNSET


class ManagedAdapter(Plain, frozen=True, kw_only=True, tag_field="kind", tag="managed"):
    """The agent is headless, and another server owns it. `timeout_s` limits one of its answers."""

    managed_api_base_url: Url
    managed_agent_ref: Text
    timeout_s: Patience | UnsetType = UNSET
    answer_timeout_s: Patience | UnsetType = UNSET


AgentAdapter = (
    TmuxAdapter | CommandAdapter | AcpAdapter | AppServerAdapter | RestAdapter | ManagedAdapter
)

_OTHER_NAMES = {
    "tmux": {"interrupt_key": "interrupt"},
    "command": {"argv": "command", "answer_timeout_s": "timeout_s"},
    "acp": {"argv": "command", "tool": "profile"},
    "codex_app_server": {"argv": "command", "tool": "profile"},
    "rest": {"url": "base_url", "terminal": "terminal_id"},
}
"""By kind: the names of options of `gateway serve`, which a manifest may use, and the settings."""
_PRESETS = {"cao_rest": "cao", "houmao_server_rest": "houmao_server"}


def with_manifest_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names and values of a manifest."""
    kind = str(settings.get("kind"))
    names = _OTHER_NAMES.get(kind, {})
    named = {names.get(name, name): value for name, value in settings.items()}
    preset = named.get("preset")
    if kind == "rest" and isinstance(preset, str):
        named["preset"] = _PRESETS.get(preset, preset)
    return named


def convert_settings(settings: Mapping[str, Any], model: type[T]) -> T:
    """Typed settings. Raises InvalidValue for unknown, missing and wrong ones."""
    try:
        return msgspec.convert(with_manifest_names(settings), model)
    except msgspec.ValidationError as error:
        advice = ""
        if str(error).endswith("_url`"):
            advice = ", which is no URL of a server: write it like http://127.0.0.1:9889"
        raise InvalidValue(
            f"the adapter's settings are wrong: {error}{advice}", field="adapter"
        ) from None
