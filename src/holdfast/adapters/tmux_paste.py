"""A prompt on its way into a pane: its buffer, and the commands of the tmux server that paste it
and send the one Enter.

A condition is a tmux format, for `if-shell -F`. A command is a text of tmux's command language. No
other command of any client comes between the parts of one step.
"""

import contextlib
import os
import re
import secrets
from pathlib import Path

from holdfast.adapters.tmux_pane import MARK, UNSENT, Screen, TmuxServer, is_silent
from holdfast.kernel.errors import Fenced, UpstreamUnavailable
from holdfast.system.access import in_folder, open_file

_BUFFER_PREFIX = "holdfast-"
_KEY_BUFFER = "holdfast_key"
"""The buffer that carries a key. It exists only within one step of the tmux server."""
_KEY_BYTES = {"C-c": r"\003", "Escape": r"\033", "Enter": r"\015"}
"""The byte that a terminal sends for a key, as tmux writes it between quotes."""
_ENTER_AFTER_S = 0.3
"""The delay of Enter after a paste: some programs take an Enter that comes at once for a part of
the paste.
"""
_PLAIN = re.compile(r"[A-Za-z0-9._+-]+")
"""A program's name without a meaning in tmux's formats."""


def is_pane(screen: Screen) -> str:
    """The condition that a pane is the one on that screen, and takes input."""
    process = (
        f"#{{&&:#{{==:#{{pid}},{screen.server_pid}}},#{{==:#{{pane_pid}},{screen.pane_pid}}}}}"
    )
    return f"#{{&&:{process},#{{!=:#{{pane_input_off}},1}}}}"


def runs_same(screen: Screen) -> str:
    """The condition that a pane is the one on that screen, with a program of the same name in the
    foreground.
    """
    if not _PLAIN.fullmatch(screen.program):
        # The name would be part of the condition's syntax. The process was checked a moment ago.
        return is_pane(screen)
    return f"#{{&&:{is_pane(screen)},#{{==:#{{pane_current_command}},{screen.program}}}}}"


def has_mark(mark: str) -> str:
    """The condition that a pane has this mark."""
    return f"#{{==:#{{{MARK}}},{mark}}}"


def is_unsent(paste: str) -> str:
    """The condition that no Enter was sent behind a paste."""
    return f"#{{==:#{{{UNSENT}}},{paste}}}"


def enter_later(screen: Screen, paste: str) -> str:
    """The tmux command that starts the timer for the Enter behind a paste, and signals when the
    Enter was sent.
    """
    # run-shell expands formats when it starts the timer. Doubled, they are expanded when it fires.
    later = f"{enter_once(screen, paste)} ; wait-for -S {paste}".replace("#", "##")
    # As one word of a tmux command.
    quoted = later.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'run-shell -b -d {_ENTER_AFTER_S} -C "{quoted}"'


def enter_once(screen: Screen, paste: str) -> str:
    """The tmux command that sends Enter for a paste: once, and only to the program that got the
    paste. The shell that an agent exits to would run the paste as a command.
    """
    pane = f"-t {screen.pane_id}"
    owed = f"#{{&&:{runs_same(screen)},{is_unsent(paste)}}}"
    return (
        f"if-shell -F {pane} '{owed}' 'set-option -pu {pane} {UNSENT} ; {press(screen, 'Enter')}'"
    )


def press(screen: Screen, key: str) -> str:
    """The tmux command that gives a key's byte to the pane's program, and to nothing else."""
    put = f"paste-buffer -r -d -b {_KEY_BUFFER} -t {screen.pane_id}"
    return f'set-buffer -b {_KEY_BUFFER} "{_KEY_BYTES[key]}" ; {put}'


class PromptBuffers:
    """The tmux buffers of prompts that are not pasted yet. An empty file with the buffer's name is
    in `folder` as long as the buffer may exist: by it the next gateway deletes the buffer of a
    killed one, since nobody else should find the prompt there.
    """

    def __init__(self, server: TmuxServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._names: list[str] = []

    def find_left(self) -> None:
        """Delete the buffers that a killed gateway left."""
        self._names += sorted(path.name for path in self._folder.glob(f"{_BUFFER_PREFIX}*"))
        self.delete_left()

    def delete_left(self) -> None:
        """Delete all buffers; stop when tmux does not answer."""
        while self._names:
            try:
                self._server.run("delete-buffer", "-b", self._names[-1])
            except UpstreamUnavailable as error:
                if is_silent(error):
                    return
            self.forget(self._names[-1])

    def forget(self, name: str) -> None:
        """The buffer does not exist any more."""
        self._names.remove(name)
        (self._folder / name).unlink(missing_ok=True)

    def load(self, prompt: str) -> str:
        """Have tmux read the prompt into a new buffer; return its name. Raises UpstreamUnavailable,
        and Fenced when tmux does not answer: nothing was delivered.
        """
        self.delete_left()
        name = f"{_BUFFER_PREFIX}{secrets.token_hex(8)}"
        self._names.append(name)
        path = self._folder / name
        try:
            # A new file, written through its own descriptor: 0600 whatever the umask, and never
            # through a link.
            with open(in_folder(path, _new_file, private=True), "wb") as file:
                file.write(prompt.encode())
            self._server.run("load-buffer", "-b", name, str(path))
        except OSError as error:
            self.forget(name)
            raise UpstreamUnavailable(
                f"the prompt cannot be written for tmux to read: {error}", outcome="none"
            ) from None
        except UpstreamUnavailable as error:
            if is_silent(error):
                raise Fenced(f"nothing was delivered: {error.message}", outcome="none") from None
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.close(open_file(path, os.O_WRONLY | os.O_TRUNC, make=False))
        return name


def _new_file(folder: int, name: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=folder)
