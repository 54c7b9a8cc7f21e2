"""Forked children that work, sleep and are killed."""

import os
import signal
import traceback
from collections.abc import Callable
from typing import NoReturn


class Child:
    """A forked process that does some work and then sleeps until it is killed, or its parent ends.
    Made once the work is done.
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
