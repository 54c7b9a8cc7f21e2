"""Forked children that do some work, and are killed during it or after it."""

import os
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn

from holdfast.testing import faults

KILLED = -signal.SIGKILL


def exit_status_of(work: Callable[[], object]) -> int:
    """Do the work in a forked child and return its exit status: 0, 1 if the work raised, or
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


def dies_at(work: Callable[[], object], at: int) -> bool:
    """Do the work in a child that kills itself at fault point number `at`. False if the work has
    fewer points and was finished.
    """

    def dying() -> None:
        with faults.armed(at=at, action=faults.kill):
            work()

    status = exit_status_of(dying)
    assert status in (0, KILLED), status
    return status == KILLED


def kill_while_busy(begin: Callable[[], Callable[[], object]], done: int) -> None:
    """Let two children repeat their work, and kill both from outside, at any instruction, once the
    work was done so many times.
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


class Child:
    """A forked process that does some work and then sleeps until it is killed or its parent ends.
    The constructor returns when the work is done.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        done, telling = os.pipe()
        ended, self._living = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(done)
            os.close(self._living)
            _work(work, telling, ended)
        os.close(telling)
        os.close(ended)
        with open(done, "rb") as pipe:
            said = pipe.readline()
            assert said == b".\n", f"the child failed: {(said + pipe.read()).decode()}"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._living)


def _work(work: Callable[[], object], telling: int, ended: int) -> NoReturn:
    try:
        work()
        os.write(telling, b".\n")
        os.read(ended, 1)
    except BaseException:
        os.write(telling, traceback.format_exc().encode())
    finally:
        os._exit(1)
