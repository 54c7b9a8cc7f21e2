"""The hooks of Codex, for one run of it.

They are options of its command line, so nothing is written into the user's settings, and another
Codex does not have them. Codex runs a hook only when somebody trusted it: by a hash of what it is.
Its own server says this hash for each hook, and the command line may state that it is trusted. So
our hooks are trusted, for this run, and the user's ones stay as the user decided. The option that
trusts all hooks (--dangerously-bypass-hook-trust) is never used.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.adapters.tools.hook_command import report_command
from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.kernel.limits import TOOL_ANSWER_S

_EVENTS = {
    "SessionStart": "session",
    "UserPromptSubmit": "prompt",
    "PreToolUse": "tool",
    "PostToolUse": "tool_ended",
    "PermissionRequest": "question",
    "Stop": "ended",
    "Interrupt": "stopped",
    "SessionEnd": "session_ended",
}
"""The events of Codex's hooks, and what each is to us."""
_OPTIONS = ("-c", "--config")
_HOOK_TIMEOUT_S = 60


def with_hooks(words: Sequence[str], folder: Path, *, question_timeout_s: float) -> list[str]:
    """The command line with our hooks, which report into `folder`.

    Raises InvalidValue when the command line has hooks of the user, or when Codex does not run
    hooks, and Unavailable when it does not say what their hashes are.
    """
    _refuse_hooks_of(words[1:])
    options = []
    for name, event in _EVENTS.items():
        timeout_s = question_timeout_s if event == "question" else _HOOK_TIMEOUT_S
        ours = {
            "type": '"command"',
            "command": _toml(report_command(folder, event)),
            "timeout": str(int(timeout_s)),
        }
        if event == "question":
            # Its own dialog opens only after the hook. A person at the terminal has to know why.
            ours["statusMessage"] = _toml("Waiting for the answer of Holdfast's operator")
        pairs = ",".join(f"{key}={value}" for key, value in ours.items())
        options += ["-c", f"hooks.{name}=[{{hooks=[{{{pairs}}}]}}]"]
    commands = {report_command(folder, event): name for name, event in _EVENTS.items()}
    hashes = {}
    for hook in _listed_hooks([words[0], *options, "app-server"]):
        if commands.pop(str(hook.get("command")), None) is not None:
            hashes[str(hook.get("key"))] = str(hook.get("currentHash"))
    if commands:
        raise InvalidValue(
            f"{words[0]} does not know the hooks {', '.join(sorted(commands.values()))}, so it "
            "cannot report what it does. Update Codex, and look whether hooks are switched off in "
            "its config.toml; or start it with --tool generic",
            field="tool",
        )
    states = ",".join(
        f"{_toml(key)}={{trusted_hash={_toml(value)}}}" for key, value in hashes.items()
    )
    return [words[0], *options, "-c", f"hooks.state={{{states}}}", *words[1:]]


def _refuse_hooks_of(arguments: Sequence[str]) -> None:
    """The same option twice: the last one counts, so ours would be lost."""
    for before, word in zip(("", *arguments), arguments, strict=False):
        value = word if before in _OPTIONS else word.partition("=")[2]
        named = before in _OPTIONS or word.startswith(tuple(f"{one}=" for one in _OPTIONS))
        if named and value.lstrip().startswith(("hooks.", "hooks=")):
            raise InvalidValue(
                f"{value[:60]} sets hooks on the command line, where Holdfast sets its own: write "
                "yours into Codex's config.toml",
                field="command",
            )


def _listed_hooks(server: Sequence[str]) -> list[Mapping[str, Any]]:
    """The hooks that Codex knows here, as its own server lists them."""
    silent = f"{server[0]} {server[-1]} did not list its hooks within {TOOL_ANSWER_S:g} s"
    try:
        process = subprocess.Popen(
            server,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise InvalidValue(
            f"{server[0]} cannot be run: {error.strerror}", field="command"
        ) from None
    limit = threading.Timer(TOOL_ANSWER_S, _end, [process])
    limit.start()
    try:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(b"".join(_requests()))
            process.stdin.flush()
        # Its input stays open: at the end of it, the server leaves without an answer.
        for line in process.stdout:
            hooks = _hooks_in(line)
            if hooks is not None:
                return hooks
    finally:
        limit.cancel()
        _end(process)
    raise Unavailable(
        f"{silent}: run `{server[0]} app-server` to see why, or start it with --tool generic",
        outcome="none",
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and what it has started: codex is a script that starts the program."""
    if process.returncode is not None:
        return
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _hooks_in(line: bytes) -> list[Mapping[str, Any]] | None:
    """The hooks in an answer of the server; None for another line."""
    try:
        document = json.loads(line)
        if document.get("id") != _LIST:
            return None
        found = document.get("result", {}).get("data", [])
        return [hook for one in found for hook in one["hooks"]]
    except (ValueError, AttributeError, KeyError, TypeError):
        return None


_LIST = 2


def _requests() -> Iterator[bytes]:
    client = {"name": "holdfast", "version": "1"}
    for request in (
        {"id": 1, "method": "initialize", "params": {"clientInfo": client}},
        {"method": "initialized"},
        {"id": _LIST, "method": "hooks/list", "params": {"cwds": [os.getcwd()]}},
    ):
        yield json.dumps(request).encode() + b"\n"


def _toml(text: str) -> str:
    """A TOML string. JSON's are the same, except for the one character."""
    return json.dumps(text, ensure_ascii=True).replace("\x7f", "\\u007f")
