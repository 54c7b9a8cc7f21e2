"""Has the program in a pane switched bracketed paste on?

Newer versions of tmux say so. Of an older one it is learned as a terminal would: by attaching, read-only and without a say in
the size, and seeing whether tmux switches it on for us, as it does for the pane that the session shows.
"""

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from holdfast.adapters.tmux_screen import Screen, TmuxServer

_ON, _OFF = b"\x1b[?2004h", b"\x1b[?2004l"
_ATTACH_S = 2.0
_QUIET_S = 0.1


def pastes_bracketed(server: TmuxServer, session: str, screen: Screen) -> bool:
    """True when it surely has."""
    if screen.bracketed is not None:
        return screen.bracketed
    if not screen.current:
        return False
    drawn = _drawn(["tmux", *server.address, "attach-session", "-f", "read-only,ignore-size", "-t", f"={session}"])
    return drawn.rfind(_ON) > drawn.rfind(_OFF)


def _drawn(command: list[str]) -> bytes:
    """What tmux sends to a terminal that attaches, until it has drawn the screen."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"} | {"TERM": "xterm-256color"}
        client = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment)
    finally:
        os.close(theirs)
    try:
        return _read(ours)
    finally:
        # Not in good order: it would take leave of its server, which may be one that does not answer.
        client.kill()
        os.close(ours)
        client.wait()


def _read(terminal: int) -> bytes:
    seen, end_s = b"", time.monotonic() + _ATTACH_S
    with contextlib.suppress(OSError):
        while time.monotonic() < end_s:
            # Quiet for a moment after the first lines: it has drawn all there is.
            if not select.select([terminal], [], [], _QUIET_S if b"\r\n" in seen else _ATTACH_S)[0]:
                break
            piece = os.read(terminal, 65536)
            if not piece:
                break
            seen += piece
    return seen
