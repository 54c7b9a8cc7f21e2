"""A process of a tree that runs under a claim: it starts others, and all of them write down that
they work.

    python -I -S tree_process.py WITNESS first SECONDS [KEPT:HOW:SECONDS]...
    python -I -S tree_process.py WITNESS TREE SECONDS

WITNESS is a file for each claim, or a folder with a file for each job. Every process of the tree
appends lines to it as long as it works. The first process also looks at the processes of the trees
before it: none of them may be able to work any more. The file needs nothing of Holdfast: the kernel
orders the lines, and /proc tells who lives.
"""

import json
import os
import signal
import sys
import time

FIRST, WORKS = "first", "works"
_BEAT_S = 0.015
_SEEN_BYTES = 1 << 16
"""How much of the end of a witness the first process of a tree reads: the lines of more than two
trees.
"""
_PF_EXITING = 0x4


def lives(pid: int, start: int) -> bool:
    """Can this process still act? An ending process has no files and no memory some time before it
    is a zombie.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return (
        int(fields[19]) == start
        and fields[0] not in (b"Z", b"X")
        and not int(fields[6]) & _PF_EXITING
    )


def start_of(pid: int) -> int:
    """The start of a process in clock ticks since boot: with the pid, its identity."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def overlaps(lines: list[str]) -> list[str]:
    """A violation in a witness: a process of one tree worked after the next tree had started."""
    wrong, now, over = [], "", set()
    for line in lines:
        word, tree, pid, _ = line.split()
        if word == FIRST:
            over.add(now)
            now = tree
        if tree in over:
            wrong.append(f"process {pid} of tree {tree} worked after tree {now} had begun")
    return wrong


def _write(witness: str, line: str) -> None:
    fd = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def _begin(witness: str, me: str) -> None:
    """Start a tree. First the line, then the check: the order of the lines reveals a process that
    writes in between.
    """
    _write(witness, f"{FIRST} {me} {me.replace('-', ' ')}\n")
    with open(witness, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _SEEN_BYTES, 0))
        lines = file.read().decode().splitlines()[1 if size > _SEEN_BYTES else 0 :]
    others = {tuple(line.split()[1:]) for line in lines}
    for tree, pid, start in sorted(others):
        if tree != me and lives(int(pid), int(start)):
            what = (
                f"two trees have {os.path.basename(witness)}: {me} begins, and process {pid} of "
                f"{tree} lives"
            )
            folder = os.path.dirname(os.path.dirname(witness))
            _write(
                f"{folder}/violations",
                json.dumps({"at": time.time(), "by": f"tree {me}", "what": what}) + "\n",
            )


def _work(witness: str, tree: str, me: str, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        _write(witness, f"{WORKS} {tree} {me.replace('-', ' ')}\n")
        time.sleep(_BEAT_S)


def _start(witness: str, tree: str, kept: str, how: str, seconds: str) -> None:
    """Start another process of the tree. It keeps the FIFO, the mark, both or none of them."""
    if os.fork():
        return
    if how == "daemon":
        os.setsid()
        if os.fork():
            os._exit(0)
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kept in ("mark", "none"):
        os.closerange(3, 1024)
    words = [sys.executable, "-I", "-S", os.path.abspath(__file__), witness, tree, seconds]
    os.execve(words[0], words, dict(os.environ) if kept in ("both", "mark") else {})


def main(arguments: list[str]) -> None:
    witness, tree, seconds, *others = arguments
    me = f"{os.getpid()}-{start_of(os.getpid())}"
    if tree == FIRST:
        tree = me
        if os.path.isdir(witness):
            witness = os.path.join(witness, os.environ["HOLDFAST_JOB_ID"])
        _begin(witness, me)
        for other in others:
            _start(witness, me, *other.split(":"))
    _work(witness, tree, me, float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
