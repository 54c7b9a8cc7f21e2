"""A gateway that is killed at one point after the other: each time in a process of its own, on a
queue of its own.

    python -m tests.hazards.gateway_victim URL FOLDER POINT ...

Each POINT, a number or a name, is also the name of a folder and of a namespace. The processes are
forked from this one, which has loaded everything and has no threads: so hundreds of them cost
seconds.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from holdfast.domains.gateway import (
    Adapter,
    AgentState,
    Answer,
    Delivery,
    DeliveryWorker,
    Gateway,
    Observation,
)
from holdfast.domains.gateway.request import Submission, draft_of
from holdfast.kernel import faults
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Queue, QueueRequest
from holdfast.processes.procfs import Procfs
from holdfast.stores.url import open_store

AGENT = "gpu"
PROMPTS = ("one", "two")
FINISHED = 7


class WritingAgent(Adapter):
    """Writes each prompt down, durably enough to outlive the process, and answers at once."""

    backend = "writing"

    def __init__(self, log: Path) -> None:
        self._log = log

    def inspect(self) -> Observation:
        return Observation("the one", AgentState.READY)

    def check(self, prompt: str) -> None:
        """Everything can be written."""

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        append(self._log, prompt)
        return Delivery(prompt)

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        return Answer(text=f"re: {delivery.handle}", source="output")

    def interrupt(self, instance_id: str) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to close."""


def append(path: Path, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def opened(url: str, folder: Path) -> Gateway:
    """The gateway of a queue, attached."""
    processes = Procfs()
    store = open_store(
        url, namespace=f"n{folder.name.replace('.', '-')}", boot_id=processes.boot_id()
    )
    journal = Journal(store, actor="tester")
    gateway = Gateway(
        Queue(store, journal, AGENT), journal, WritingAgent(folder / "delivered"), processes
    )
    gateway.attach()
    gateway.look()
    return gateway


def work(url: str, folder: Path, dies_at: str) -> None:
    """Take requests in and carry them out, and die at the point of that number or name, whichever
    thread comes to it.
    """
    passed = 0
    counting = threading.Lock()

    def count(point: str) -> None:
        nonlocal passed
        with counting:
            passed += 1
            dies = dies_at in (point, str(passed))
        if dies:
            append(folder / "died_at", point)
            os.kill(os.getpid(), signal.SIGKILL)

    gateway = opened(url, folder)
    worker = DeliveryWorker(gateway, inspect_every_s=0.02)
    faults.hook = count
    worker.start()
    asked = []
    for kind, payload in [
        *(("submit_prompt", {"prompt": prompt}) for prompt in PROMPTS),
        ("interrupt", {}),
    ]:
        draft = draft_of(kind, payload, gateway.adapter.check)
        (answer,) = gateway.accept([Submission(draft)])
        assert isinstance(answer, QueueRequest)
        append(folder / "acknowledged", answer.request_id)
        asked.append(answer)
    for request in asked:
        gateway.queue.wait(request.request_id, 30)
    os._exit(FINISHED)


def main() -> None:
    url, folder = sys.argv[1], Path(sys.argv[2])
    for point in sys.argv[3:]:
        own = folder / point
        own.mkdir()
        child = os.fork()
        if child == 0:
            try:
                work(url.format(folder=own), own, point)
            finally:
                os._exit(1)
        append(folder / "ended", f"{point} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main()
