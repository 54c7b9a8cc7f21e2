"""How a tool is started as an agent: its command line and environment by its profile, so that its
hooks report what it does.
"""

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.adapters.profiles import (
    GENERIC,
    profile_named,
    profile_names,
    profile_path,
    profiles_folder,
)
from holdfast.adapters.tools import codex, gemini, opencode
from holdfast.adapters.tools.hook_command import report_command
from holdfast.kernel.agent_adapter import QUESTION_TIMEOUT_S
from holdfast.kernel.agent_profile import Profile
from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.system.access import make_private_folder, remove_file, replace_file

REPORTS_FOLDER = "reports"
TOKEN_VARIABLE = "HOLDFAST_REPORT_TOKEN"
_CLAUDE_EVENTS = {
    "SessionStart": "session",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "tool",
    "PostToolUse": "tool_ended",
    "PostToolUseFailure": "tool_ended",
    "PermissionRequest": "question",
    "Stop": "ended",
    "StopFailure": "failed",
    "SessionEnd": "session_ended",
}
"""The events of Claude Code's hooks, and what each is to us."""
_CLAUDE_SETTINGS = "--settings"


class ToolLaunch(NamedTuple):
    """The command that starts a tool, and what is added to its environment."""

    command: list[str]
    environment: dict[str, str]


def tool_adapter(profile: Profile, root: str, *, hooked: bool = True) -> dict[str, Any]:
    """The settings of a tmux adapter that follow from the profile of an agent whose folder is
    `root`, by their names in a manifest. Only an agent that is `hooked` reports.
    """
    if profile.name == GENERIC:
        return {}
    adapter = {"profile": profile.name, "interrupt": profile.keys.interrupt}
    if hooked and _reports(profile):
        adapter["reports"] = os.path.join(root, REPORTS_FOLDER)
    return adapter


def prepare_tool(
    profile: Profile,
    command: Sequence[str],
    *,
    root: str,
    session_id: str | None = None,
) -> ToolLaunch:
    """How that command is started as an agent whose folder is `root`; with `session_id`, it goes on
    with that conversation. Writes what the tool's hooks need into the folder.

    Raises InvalidValue when the tool cannot go on with a conversation, or its own settings are
    wrong, and Unavailable when the folder cannot be written.
    """
    words = [*command, *_missing(profile.launch.arguments, command)]
    if session_id is not None:
        if not profile.launch.resume:
            raise InvalidValue(
                f"{profile.name} cannot go on with a conversation: start a new one without resume",
                field="resume",
            )
        words += [word.replace("{session}", session_id) for word in profile.launch.resume]
    if not _reports(profile):
        return ToolLaunch(words, {})
    folder, token = Path(root, REPORTS_FOLDER), secrets.token_urlsafe(24)
    environment = {TOKEN_VARIABLE: token}
    try:
        make_private_folder(folder)
        _remove_reports(folder)
        replace_file(folder / "token", token.encode(), private=True)
        if profile.reports == "claude":
            words = _with_claude_hooks(words, folder)
        elif profile.reports == "codex":
            words = codex.with_hooks(words, folder, question_timeout_s=QUESTION_TIMEOUT_S)
        elif profile.reports == "opencode":
            environment |= opencode.environment_with_plugin(os.environ, folder)
        elif profile.reports == "gemini":
            environment |= gemini.environment_with_hooks(folder)
    except OSError as error:
        raise Unavailable(
            f"{folder} cannot be written ({error.strerror}): name another folder with "
            "--session-root",
            outcome="none",
        ) from None
    return ToolLaunch(words, environment)


class KnownTool(NamedTuple):
    """A profile, as a list of tools shows it. `in_tmux` is what is known of a prompt in a pane, and
    `advice` how more would be.
    """

    name: str
    programs: tuple[str, ...]
    in_tmux: tuple[str, ...]
    resumes: bool
    protocol: tuple[str, ...]
    path: str
    advice: str = ""


def known_tools(environment: Mapping[str, str]) -> list[KnownTool]:
    """All profiles: the built-in ones and the user's own. Raises InvalidValue for a wrong one."""
    folder = profiles_folder(environment)
    profiles = [profile_named(name, folder) for name in profile_names(folder)]
    return [
        KnownTool(
            one.name,
            one.programs,
            _known_in_tmux(one),
            bool(one.launch.resume),
            one.launch.protocol,
            str(profile_path(one.name, folder)),
            f"gemini extensions link {gemini.EXTENSION}"
            if one.reports == "gemini" and not _reports(one)
            else "",
        )
        for one in profiles
    ]


def _known_in_tmux(profile: Profile) -> tuple[str, ...]:
    ready = () if profile.screen.box is None else ("ready",)
    if not _reports(profile):
        return (*ready, "delivered")
    # No hook of Gemini can answer for a person.
    questions = () if profile.reports == "gemini" else ("questions",)
    return (*ready, "received", "answered", *questions)


def _reports(profile: Profile) -> bool:
    """Will the tool report what it does? Gemini CLI does when its user has linked the extension."""
    if profile.reports == "gemini":
        return gemini.is_linked(os.environ)
    return profile.reports is not None


def _remove_reports(folder: Path) -> None:
    """Remove what the last generation's hooks reported, in a folder that the user named. Raises
    OSError.
    """
    for name in ("activity.json", "expected"):
        remove_file(folder / name)
    for report in folder.glob("*.report"):
        remove_file(report)


def _missing(arguments: Sequence[str], command: Sequence[str]) -> list[str]:
    """The profile's arguments, unless the user has given the same option."""
    option = arguments[0] if arguments else ""
    given = any(word == option or word.startswith(f"{option}=") for word in command)
    return [] if given else list(arguments)


def _with_claude_hooks(words: list[str], folder: Path) -> list[str]:
    """The command line with our hooks in Claude Code's settings, beside those of the user."""
    words, given = _without_settings(words)
    settings = dict(given)
    hooks: dict[str, Any] = dict(settings.get("hooks") or {})
    for name, event in _CLAUDE_EVENTS.items():
        ours = {
            "type": "command",
            "command": report_command(folder, event),
            # A question waits for its operator.
            "timeout": int(QUESTION_TIMEOUT_S) if event == "question" else 60,
        }
        hooks[name] = [*hooks.get(name, ()), {"hooks": [ours]}]
    settings["hooks"] = hooks
    # Its suggestions stand in the input box, as a text that somebody typed would.
    settings.setdefault("promptSuggestionEnabled", False)
    path = folder / "settings.json"
    replace_file(path, json.dumps(settings, indent=1).encode(), private=True)
    return [words[0], _CLAUDE_SETTINGS, str(path), *words[1:]]


def _without_settings(words: Sequence[str]) -> tuple[list[str], Mapping[str, Any]]:
    """The command line without the user's --settings, and what these say: a file, or JSON."""
    for at, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option != _CLAUDE_SETTINGS:
            continue
        end = at + 1 if equals else at + 2
        text = value if equals else next(iter(words[at + 1 : end]), "")
        try:
            document = json.loads(
                text if text.lstrip().startswith("{") else Path(text).read_bytes()
            )
            if not isinstance(document, dict):
                raise ValueError("it is no object")
        except (OSError, ValueError) as error:
            raise InvalidValue(
                f"{_CLAUDE_SETTINGS} {text[:100]} cannot be read: {error}", field="settings"
            ) from None
        return [*words[:at], *words[end:]], document
    return list(words), {}
