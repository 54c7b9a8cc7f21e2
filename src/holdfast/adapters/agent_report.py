"""The program that a tool's hooks run: it leaves a report in the folder of the agent.

    python -I -S agent_report.py FOLDER EVENT        the tool's own JSON on standard input

It runs as a script, without the package, and reads no setting of the user: a hook runs before each
prompt and around each tool call, so every millisecond of it is felt. A report is a file of its own
with the time in its name, complete as soon as it has that name. So reports are in order, none is
lost while no gateway runs, and a gateway that is killed finds them all.

Two events do more:

- `prompt`: the gateway says in the file `expected` which prompt it is typing. A prompt that has a
  part of this one, and is another, was mixed with what a person typed or removed at that moment. It
  is refused, before the agent sees it, and stays in the input box.
- `question`: the operator may answer where the agent is asked. The program makes a FIFO, says in
  the report where it is, and prints what comes through it. An empty answer decides nothing: then
  the tool's own dialog does.
"""

import os
import re
import signal
import sys
import time

_PASTED = re.compile(r'\s*<pasted_content id="([^"]*)">\n(.*)\n</pasted_content id="\1">\s*', re.S)
"""How Claude Code marks a paste of several lines, since 2.1.328."""
_SELECTORS = dict.fromkeys(range(0xFE00, 0xFE10))
"""Removed: how the character before is drawn."""
_PIECE_CHARS = 12
"""So much of its beginning or its end shows that a text is made of a prompt."""
_EXPECTED_S = 60.0
_BYTES_MAX = 4 << 20
_TOOL_BYTES_MAX = 64 << 10
_FILES_MAX = 4000
"""With so many reports that nobody has read, those of tool calls are left out."""
_TOOL_EVENTS = ("tool", "tool_ended", "notice")
_REFUSED = 2
"""The exit status by which Claude Code and Codex refuse a prompt, and leave it in the box."""


def main(folder: str, event: str) -> int:
    data = sys.stdin.buffer.read(_BYTES_MAX)
    if event in _TOOL_EVENTS and len(os.listdir(folder)) > _FILES_MAX:
        return 0
    if event == "prompt":
        return _report_prompt(folder, data)
    if event == "question":
        return _ask(folder, data)
    _write(folder, event, data)
    return 0


def _write(folder: str, event: str, data: bytes, reply: str = "") -> None:
    """Leave a report: a line with the token of the agent's generation, the process and its FIFO;
    then what the tool said.
    """
    name = f"{time.time_ns():020d}-{os.getpid()}-{event}"
    path = os.path.join(folder, name)
    head = f"{os.environ.get('HOLDFAST_REPORT_TOKEN', '')} {os.getpid()} {reply or '-'}\n"
    fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(head.encode())
        file.write(data[:_TOOL_BYTES_MAX] if event in _TOOL_EVENTS else data)
    os.rename(f"{path}.new", f"{path}.report")


def comparable(prompt: str) -> str:
    """A prompt, typed or reported, as it is compared: without white space around it, without the
    mark around a single paste, and as Claude Code keeps it: with four spaces for a tab, without the
    characters that nobody sees, with one character for a letter and its accents. Text beside a
    paste leaves its mark there.
    """
    found = _PASTED.fullmatch(prompt)
    if found is not None and "</pasted_content" not in found[2]:
        prompt = found[2]
    if not prompt.isascii():
        import unicodedata

        lines = prompt.replace("\u2028", "\n").replace("\u2029", "\n")
        seen = (one for one in lines if unicodedata.category(one) != "Cf")
        prompt = unicodedata.normalize("NFC", "".join(seen).translate(_SELECTORS))
    return prompt.strip().replace("\t", "    ")


def is_mixed(prompt: str, wanted: str) -> bool:
    """Is a prompt, which is another one than the gateway types, made of it: with a text of a person
    in it, or without what a person removed?
    """
    head, tail = wanted[:_PIECE_CHARS], wanted[-_PIECE_CHARS:]
    return head in prompt or tail in prompt or (bool(prompt) and prompt in wanted)


def _expected(folder: str) -> str:
    """The prompt that the gateway types at this moment; empty when it types none. A gateway that
    was killed leaves its note behind.
    """
    try:
        with open(os.path.join(folder, "expected"), encoding="utf-8") as file:
            age_s = time.time() - os.fstat(file.fileno()).st_mtime
            return comparable(file.read()) if age_s < _EXPECTED_S else ""
    except OSError:
        return ""


def _report_prompt(folder: str, data: bytes) -> int:
    import json

    wanted = _expected(folder)
    prompt = comparable(str(json.loads(data).get("prompt", "")))
    if not wanted or prompt == wanted or not is_mixed(prompt, wanted):
        _write(folder, "prompt", data)
        return 0
    _write(folder, "mixed", data)
    sys.stderr.write(
        "Holdfast: this text and a prompt of the gateway were typed at the same moment. Nothing "
        "was sent: remove what is not yours, then send it.\n"
    )
    return _REFUSED


def _ask(folder: str, data: bytes) -> int:
    fifo = os.path.join(folder, f"reply-{time.time_ns():020d}-{os.getpid()}")
    os.mkfifo(fifo, 0o600)
    try:
        # Ended by the tool, or because its time is over: the FIFO goes too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        _write(folder, "question", data, os.path.basename(fifo))
        with open(fifo, "rb") as file:
            sys.stdout.buffer.write(file.read())
    finally:
        os.unlink(fifo)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
