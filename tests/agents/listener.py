"""A small interactive program for a pane: it shows a prompt, takes pasted and typed text, and logs
each line of input. `python listener.py LOG [plain]`. A text that starts with `work` keeps it busy
until Ctrl-C. With `plain` it does not switch bracketed paste on. LOG.raw contains every byte that
it gets.
"""

import os
import select
import sys
import termios
import tty

PASTE, PASTED = b"\x1b[200~", b"\x1b[201~"


def main(log: str, bracketed: bool) -> None:
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        if bracketed:
            os.write(1, b"\x1b[?2004h")
        _listen(log)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _listen(log: str) -> None:
    raw = os.open(log + ".raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(1, b"ready> ")
    text, pending, pasting = b"", b"", False
    while piece := os.read(0, 65536):
        os.write(raw, piece)
        pending += piece
        while pending:
            marker = PASTED if pasting else PASTE
            if pasting and marker in pending:
                inside, pending = pending.split(marker, 1)
                text, pasting = text + inside, False
                os.write(1, b"[%d bytes]" % len(text))
            elif pasting:
                keep = len(pending) - 5 if len(pending) > 5 else 0
                text, pending = text + pending[:keep], pending[keep:]
                break
            elif pending.startswith(marker):
                pending, pasting = pending[len(marker) :], True
            elif marker.startswith(pending):
                break
            else:
                key, pending = pending[:1], pending[1:]
                if key == b"\r":
                    _taken(log, raw, text)
                    text = b""
                elif key == b"\x04":
                    return
                else:
                    text += key
                    os.write(1, key)


def _taken(log: str, raw: int, text: bytes) -> None:
    with open(log, "ab") as file:
        file.write(text.hex().encode() + b"\n")
    os.write(1, b"\r\n")
    if text.startswith(b"work"):
        _work(log, raw)
    os.write(1, b"heard %d bytes\r\nready> " % len(text))


def _work(log: str, raw: int) -> None:
    """Busy until Ctrl-C, and never still."""
    for number in range(100_000):
        os.write(1, b"\rworking %d" % number)
        piece = os.read(0, 1024) if select.select([0], [], [], 0.05)[0] else b""
        os.write(raw, piece)
        if b"\x03" in piece:
            with open(log, "ab") as file:
                file.write(b"interrupted\n")
            os.write(1, b"\r\nstopped\r\n")
            return


if __name__ == "__main__":
    main(sys.argv[1], "plain" not in sys.argv[2:])
