"""What crowds of processes have in common: threads that must all end well, and a time in which no
process may end.
"""

import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class Member(Protocol):
    """A process of a crowd, as it is watched from outside."""

    pidfd: int

    @property
    def name(self) -> str:
        """What no other process of the run is called."""
        ...

    def told(self) -> str:
        """What it failed with."""
        ...


def over(crowd: Sequence[Member], seconds: float, until: float) -> bool:
    """Wait for so long, or until the end, which makes it True; a process that ends before is a
    failure.
    """
    left_s = until - time.monotonic()
    ended, _, _ = select.select(
        [member.pidfd for member in crowd], [], [], max(min(seconds, left_s), 0.0)
    )
    # Woken late, on a busy machine, it finds those ended that were to end by then.
    if left_s <= seconds or time.monotonic() >= until:
        return True
    failed = [f"{member.name}: {member.told()}" for member in crowd if member.pidfd in ended]
    assert not failed, f"processes ended by themselves: {failed}"
    return False


def run_all(works: Mapping[str, Callable[[], None]]) -> int:
    """Do all of it at once, each in a thread of that name; the exit status of the process: 1 when
    one of them failed.
    """
    failures: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=run, args=(work,), name=name) for name, work in works.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1 if failures else 0
