"""Work done by children that are killed in the middle of it."""

import os
import signal
import traceback
from collections.abc import Callable

from holdfast.testing import faults

KILLED = -signal.SIGKILL


def ended(work: Callable[[], object]) -> int:
    """Do the work in a forked child, which ends with it; how it ended: 0, 1 when it raised,
    KILLED.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dies(work: Callable[[], object], at: int) -> bool:
    """Do the work in a child that kills itself at its point number `at`; False when it got
    through.
    """

    def dying() -> None:
        with faults.armed(at=at, action=faults.kill):
            work()

    status = ended(dying)
    assert status in (0, KILLED), status
    return status == KILLED


def killed_busy(begin: Callable[[], Callable[[], object]], done: int) -> None:
    """Let two children begin and then do the same again and again, and kill both from outside, at
    whatever instruction that is, when so much was done.
    """
    hearing, telling = os.pipe()
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                work = begin()
                while True:
                    work()
                    os.write(telling, b".")
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        children.append(child)
    for _ in range(done):
        os.read(hearing, 1)
    for child in children:
        os.kill(child, signal.SIGKILL)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    os.close(hearing)
    os.close(telling)
    assert ends == [KILLED, KILLED], "a child ended by itself"
