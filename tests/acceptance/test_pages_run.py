"""What the guides show is run as a reader would run it: each page's Python as one program, its
shell on a terminal.

README.md and quickstart.md are for the first ten minutes, and are followed in one shell, one after
the other: every block of them, the indented ones too, each command ending with status 0. What
cannot be run there is below `<!-- not run: why -->`, and what does not end by itself below `<!-- in
a second terminal -->`.

On the other pages a `console` block is a shell of its own: lines after `$ ` are typed, the lines
below are what must appear. Numbers, names that commands make up and lengths of time may differ. A
block below `<!-- in a second terminal -->` goes on beside the others, once it has said its first
line, until `<!-- the second terminal is done -->`. One below `<!-- within moments -->` only looks,
and is run again until what is shown has come about.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.timeouts import PATIENCE_S, until
from tests.harness.tmux_server import tmux_server

ROOT = Path(__file__).parents[2]
PAGES = [
    "locks.md",
    "custody.md",
    "files.md",
    "network.md",
    "agents.md",
    "workflows.md",
    "jobs.md",
    "gateway.md",
    "mcp.md",
    "operations.md",
    "server.md",
]
WITHOUT_SHELL = ["testing.md"]
"""What they show on a terminal takes half an hour."""
FIRST_PAGES = ["README.md", "docs/quickstart.md"]
"""Followed in one shell."""
WITH_TMUX = {"agents.md", "gateway.md", FIRST_PAGES[0]}
BEGUN, DONE, SOON = "in a second terminal", "the second terminal is done", "within moments"
NOT_RUN = "not run: "
INDENT = "    "

pytestmark = pytest.mark.prove


class Block(NamedTuple):
    """A fenced block of a page, and the remark above it."""

    kind: str
    text: str
    line: int
    remark: str


def blocks(page: str) -> Iterator[Block]:
    """The blocks and remarks of a page in order; a remark without a block is one of no kind."""
    lines = (ROOT / (page if page in FIRST_PAGES else f"docs/{page}")).read_text().splitlines()
    remark, kind, begin = "", "", -1
    for at, line in enumerate(lines):
        if begin < 0 and line.startswith(INDENT) and not lines[at - 1].startswith(INDENT):
            indented = list(takewhile(lambda one: one.startswith(INDENT), lines[at:]))
            yield Block(
                "indented", "\n".join(one[len(INDENT) :] for one in indented), at + 1, remark
            )
            remark = ""
        if found := re.fullmatch(r"<!-- (.*) -->", line):
            remark = found[1]
            if remark == DONE:
                yield Block("", "", at, remark)
                remark = ""
        elif begin < 0 and line.startswith("```"):
            kind, begin = line[3:], at
        elif begin >= 0 and line == "```":
            yield Block(kind, "\n".join(lines[begin + 1 : at]), begin + 2, remark)
            remark, begin = "", -1


@pytest.fixture
def environment(tmp_path: Path, page: str) -> Iterator[dict[str, str]]:
    """A home with an empty store, and a tmux of its own where a page uses one, with `holdfast` on
    the PATH.
    """
    command = tmp_path / "bin" / "holdfast"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nexec {_quoted(sys.executable)} -m holdfast.surfaces.cli.entry "$@"\n'
    )
    command.chmod(0o755)
    # A link would not find what is installed beside it.
    python = command.with_name("python")
    python.write_text(f'#!/bin/sh\nexec {_quoted(sys.executable)} "$@"\n')
    python.chmod(0o755)
    more = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    # Where nobody listens, whatever runs on this machine.
    more["MQTT_PORT"] = "9"
    path = f"{command.parent}:{os.environ['PATH']}"
    with ExitStack() as opened:
        if page in WITH_TMUX:
            more.update(opened.enter_context(tmux_server()).environment)
        yield {
            "PATH": path,
            "HOME": str(tmp_path),
            "USER": "me",
            "LANG": "C.UTF-8",
            "COLUMNS": "110",
            "TERM": "xterm",
            **more,
        }


@pytest.mark.parametrize("page", [*PAGES, *WITHOUT_SHELL])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    # Padded, so that a traceback names the line of the page.
    program: list[str] = []
    for block in blocks(page):
        if block.kind == "python":
            program += [""] * (block.line - 1 - len(program)) + block.text.split("\n")
    assert program
    # Not under the bare name, which may be that of a module that it imports.
    script = tmp_path / page.replace(".md", "_page.py")
    script.write_text("\n".join(program))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        # proof/ is in the checkout alone.
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_the_shell_of_a_page_says_what_the_page_shows(
    page: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    second: Terminal | None = None
    shells = [block for block in blocks(page) if block.kind in ("console", "")]
    assert shells
    with ExitStack() as opened:
        for block in shells:
            if block.kind == "":
                assert second is not None
                second.compare()
                continue
            if block.remark == SOON:
                _show_in_the_end(block, tmp_path, environment)
                continue
            terminal = opened.enter_context(Terminal(block, tmp_path, environment))
            if block.remark == BEGUN:
                second = terminal
                second.read_line()
            else:
                terminal.compare()


@pytest.mark.parametrize("page", FIRST_PAGES[:1])
def test_the_first_pages_run_in_order_in_one_shell(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """A lock that one of them takes and does not give back would let another one wait for ever."""
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    found, _, path = environment.pop("PATH").partition(":")
    activate.write_text(f"PATH={_quoted(found)}:$PATH\n")
    left_out = []
    with Shell(tmp_path, {**environment, "PATH": path}) as shell:
        for page in FIRST_PAGES:
            with ExitStack() as opened:
                for block in blocks(page):
                    if block.remark.startswith(NOT_RUN):
                        left_out += block.text.split("\n")
                    elif block.remark == BEGUN:
                        second = opened.enter_context(
                            Terminal(block, tmp_path, environment | {"PATH": f"{found}:{path}"})
                        )
                        second.read_line()
                    elif block.kind == "python":
                        shell.run(f"{page}:{block.line}", f"python - <<'END'\n{block.text}\nEND")
                    elif block.kind in ("console", "indented"):
                        for at, command, shown in _commands(block):
                            said = shell.run(f"{page}:{at}", command)
                            assert not shown or plain(said) == plain(shown), (
                                f"{page}:{at} is not in step with\n{said}"
                            )
                    else:
                        assert block.kind in ("json", "toml"), (
                            f"{page}:{block.line}: what is a {block.kind} block?"
                        )
    assert [line.split(" ")[:2] for line in left_out] == [
        ["make", "run"],
        ["make", "test"],
        ["make", "run"],
    ]


def _commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """The commands of a block, with the line that each is in and what is shown below it."""
    lines = block.text.split("\n")
    if block.kind == "indented":
        yield from ((block.line + at, line, "") for at, line in enumerate(lines))
        return
    for at, line in enumerate(lines):
        if line.startswith("$ "):
            shown = takewhile(lambda one: not one.startswith("$ "), lines[at + 1 :])
            yield block.line + at, line[2:], "\n".join(shown)


class Shell:
    """One bash that is given one command after the other, on a terminal."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        theirs, self._commands = os.pipe()
        self._ours, terminal = pty.openpty()
        # Not on its standard input: a command that reads that would have the next ones.
        self._shell = subprocess.Popen(
            ["bash", "--norc", f"/dev/fd/{theirs}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)
        os.close(terminal)

    def __enter__(self) -> "Shell":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        os.close(self._commands)
        os.close(self._ours)

    def run(self, where: str, command: str) -> str:
        """Run a command to its end, and return what it said. It fails when that does not come, and
        when its status is not 0.
        """
        os.write(self._commands, f"{command}\nprintf '{_END}%s{_END}' $?\n".encode())
        said, deadline = b"", time.monotonic() + PATIENCE_S
        while said.count(_END.encode()) < 2:
            ready, _, _ = select.select([self._ours], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"{where}: `{command}` does not end; it said {said.decode()!r}"
            said += os.read(self._ours, 65536)
        text, status, _ = said.decode().replace("\r\n", "\n").split(_END)
        assert status == "0", f"{where}: `{command}` ended with {status}: {text}"
        return text


_END = "\x1e"
"""What no command writes."""


def _show_in_the_end(block: Block, folder: Path, environment: dict[str, str]) -> None:
    seen: list[str] = []

    def shown() -> bool:
        with Terminal(block, folder, environment) as terminal:
            seen[:] = plain(terminal.read())
        return seen == plain(block.text)

    until(shown, saw=lambda: f"(line {block.line}): {seen}")


class Terminal:
    """A terminal on which the commands of a block are run, one after the other."""

    def __init__(self, block: Block, folder: Path, environment: dict[str, str]) -> None:
        self._block = block
        self._seen = b""
        commands = [line[2:] for line in block.text.split("\n") if line.startswith("$ ")]
        # Each is shown as typed, and the next finds the exit status of the one before it.
        script = "".join(
            f"__status=$?; printf '%s\\n' {_quoted('$ ' + one)}; (exit $__status)\n{one}\n"
            for one in commands
        )
        self._ours, theirs = pty.openpty()
        self._shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait()
        os.close(self._ours)

    def read_line(self) -> None:
        """Until the first command has said something."""
        while self._seen.count(b"\n") < 2 and self._read():
            continue

    def read(self) -> str:
        """Until the last command has ended."""
        while self._read():
            continue
        self._shell.wait(PATIENCE_S)
        return self._seen.decode().replace("\r\n", "\n")

    def compare(self) -> None:
        """What appeared must be what the page shows."""
        seen = self.read()
        assert plain(seen) == plain(self._block.text), (
            f"line {self._block.line}: the page is not in step with\n{seen}"
        )

    def _read(self) -> bool:
        try:
            self._seen += (piece := os.read(self._ours, 65536))
        except OSError:
            # The last one at the other end has gone.
            return False
        return bool(piece)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def plain(text: str) -> list[str]:
    """The lines of a text without what differs from one run to the next."""
    for pattern, stand_in in (
        ("\x1b\\[[0-9;]*m", ""),
        (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "a generation"),
        ("waiting for [^\n]*\r\x1b\\[K", ""),
        ("(\rholdfast: [^\r\n]* so far)+\r *\r", ""),
        (r"/enter/[\w-]{32}", "/enter/a-code"),
        (r"\b(run|wait)-\d+-[0-9a-f]{6}\b", r"\1-1"),
        (r"less than 1 s|\b\d+ (d|h|min|s)\b( \d+ (h|min)\b)?", "a while"),
        (r"\b\d+(\.\d+)?(e-?\d+)? (ms|s)\b", "a while"),
        # Only an instant of another day is shown with its date, as one soon after midnight may be.
        (r"\b\d{4}-\d\d-\d\d (?=\d\d:\d\d)", ""),
        (r"\d+(\.\d+)?", "1"),
        (r"[ \t]+", " "),
    ):
        text = re.sub(pattern, stand_in, text)
    return [line.strip() for line in text.strip().split("\n")]
