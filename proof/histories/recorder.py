"""Writing down calls and answers as they happen, so that a killed process leaves a readable
history.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from proof.event_log import EventLog
from proof.histories.operation import DIE, NEVER, Operation


class PendingCall:
    """The call under way, in the hands of the one who makes it."""

    def __init__(self, recorder: "Recorder", call_id: str) -> None:
        self._recorder = recorder
        self._id = call_id

    def answer(self, answer: Any) -> None:
        """Record the answer. Without this the call stays pending, which is right if its outcome is
        unknown.
        """
        self._recorder.log.write({"at": time.monotonic(), "id": self._id, "answer": answer})


class Recorder:
    """The history of one process. Safe for its threads."""

    def __init__(self, path: Path, *, process: str) -> None:
        self.process = process
        self._numbers = count(1)
        self.log = EventLog(path)

    @contextmanager
    def call(self, call: str, keys: Sequence[str], **arguments: Any) -> Iterator[PendingCall]:
        """Make the call inside the block, and record its answer there. `arguments` are JSON values."""
        pending = PendingCall(self, f"{self.process}#{next(self._numbers)}")
        line = {
            "id": pending._id,
            "process": self.process,
            "call": call,
            "keys": list(keys),
            "arguments": arguments,
        }
        self.log.write({"at": time.monotonic(), **line})
        yield pending

    def close(self) -> None:
        """End the recording."""
        self.log.close()


def died(process: str, at: float) -> Operation:
    """The death of a process, which starts when the kill is sent."""
    return Operation(f"{process}#death", process, DIE, (), {}, at)


def read(paths: Iterable[Path]) -> list[Operation]:
    """The operations in these files, in the order of their starts. A torn last line is left out."""
    return parsed(line for path in paths for line in path.read_bytes().split(b"\n")[:-1])


def parsed(lines: Iterable[bytes]) -> list[Operation]:
    """The same of lines."""
    begun: dict[str, Operation] = {}
    for line in lines:
        event = json.loads(line)
        if "call" in event:
            keys = tuple(event["keys"])
            begun[event["id"]] = Operation(
                event["id"],
                event["process"],
                event["call"],
                keys,
                event["arguments"],
                event["at"],
                NEVER,
            )
        else:
            begun[event["id"]] = begun[event["id"]]._replace(
                end=event["at"], answer=event["answer"]
            )
    return sorted(begun.values(), key=lambda operation: operation.begin)
