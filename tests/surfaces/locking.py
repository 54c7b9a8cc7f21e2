"""Commands under locks, for tests: each step waits for an effect of the step before it, and never
for a length of time.
"""

import os
import select
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from holdfast.kernel.holder import Holder
from holdfast.primitives.locks.records import within
from holdfast.runtime.connection import Holdfast, connect
from tests.harness.journal import until_logged
from tests.harness.timeouts import PATIENCE_S, until
from tests.surfaces.command import ENTRY, CommandLine

HOLDING = ["sh", "-c", "echo $$; exec cat"]
"""A command that prints its process id and lives until its input ends."""

Process = subprocess.Popen[str]


def trapping(signal_name: str, status: int = 42) -> list[str]:
    """A command that says `up`, and for the signal `got`, and exits with a status."""
    script = (
        # Asleep in a read that the signal itself ends: one that comes just before a pause would
        # not.
        "import os, signal\n"
        "reads, writes = os.pipe()\n"
        "os.set_blocking(writes, False)\n"
        "signal.set_wakeup_fd(writes)\n"
        f"signal.signal(signal.{signal_name}, lambda *_: (os.write(1, b'got\\n'), "
        f"os._exit({status})))\n"
        "os.write(1, b'up\\n')\n"
        "while True: os.read(reads, 1)"
    )
    return [sys.executable, "-c", script]


class Bench(CommandLine):
    """`holdfast` on a store of its own, and a look into that store."""

    def __init__(self, folder: Path, hf: Holdfast, url: str) -> None:
        super().__init__(folder, HOLDFAST_STORE=url)
        self.hf = hf
        self.url = url
        self._started: list[Process] = []

    def run(self, *words: str, **how: object) -> Process:
        """Start `holdfast locks run WORDS`; its input is ours to end."""
        process = self.start("locks", "run", *words, stdin=subprocess.PIPE, **how)
        self._started.append(process)
        return process

    def hold(self, *words: str) -> tuple[Process, int]:
        """Start a command that holds locks, and wait until it does; return it and the command's
        process id.
        """
        process = self.run(*words, "--", *HOLDING)
        return process, int(line(process))

    def waiting(self, name: str, by: str) -> None:
        """Wait until a job is in line for a resource."""
        # A short wait is not in the journal.
        until(lambda: any(within(one.by, by) for one in self.hf.locks.status(name).queue))

    def until_logged(self, kind: str, name: str, by: str) -> None:
        """Wait until the journal has such an entry of a job or a part of it."""
        until_logged(
            self.hf, kind, lambda entry: entry.subject == name and within(entry.data["by"], by)
        )

    def free(self, name: str) -> bool:
        status = self.hf.locks.status(name)
        return not status.queue and all(hold.reclaimable for hold in status.holds)

    def nothing_left(self) -> bool:
        return self.hf.locks.list_held() == []

    def close(self) -> None:
        for process in self._started:
            put_down(process)


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    url = f"sqlite:{folder}/state/store.sqlite"
    with connect(url) as hf:
        made = Bench(folder, hf, url)
        try:
            yield made
        finally:
            made.close()


def line(process: Process) -> str:
    """The next line of output."""
    return _line_of(process.stdout)


def remark(process: Process) -> str:
    """The next line on standard error."""
    return _line_of(process.stderr)


def output_of(*processes: Process, within_s: float) -> list[IO[str]]:
    """The outputs of processes on which something is to be read within that time."""
    streams = [stream for one in processes for stream in (one.stdout, one.stderr) if stream]
    return select.select(streams, [], [], within_s)[0]


def _line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    found = bytearray()
    # From the pipe itself, as `end` does: what a buffer had read ahead would be missing there.
    while (byte := os.read(stream.fileno(), 1)) not in (b"", b"\n"):
        found += byte
    return found.decode().strip()


def put_down(process: Process) -> None:
    """Kill a process, and wait for it; not for whatever it has started, which may have its output
    still.
    """
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(BrokenPipeError):
                stream.close()


def end(process: Process) -> tuple[int, str, str]:
    """End a process's input, and with it a holding command; return its exit status and the rest of
    what it said.
    """
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def nested(*words: str) -> str:
    """A line of shell that runs `holdfast WORDS`."""
    return " ".join([shlex.join(ENTRY), *words])


def a_dead_process() -> Holder:
    with connect("memory:") as hf:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        holder = hf.processes.of(process.pid, "make")
        process.communicate(b"\n")
    return holder
