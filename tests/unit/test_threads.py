"""Threads that are started while a signal arrives."""

import threading

import pytest

from holdfast.kernel import threads


class Interrupted(threading.Thread):
    """A thread whose start is interrupted where Python hides it."""

    def start(self) -> None:
        super().start()
        lock = threading.Lock()
        with lock:
            lock.release()
            raise KeyboardInterrupt


class Refused(threading.Thread):
    """A thread for which there is no room."""

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_ctrl_c_in_the_start_of_a_thread_comes_through() -> None:
    """Python's Condition released its lock twice, and the caller got a RuntimeError."""
    ran = threading.Event()
    thread = Interrupted(target=ran.set)
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        Interrupted(target=ran.set).start()
    with pytest.raises(KeyboardInterrupt):
        threads.start(thread)
    thread.join()
    assert ran.is_set()


def test_a_thread_that_cannot_be_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="can't start"):
        threads.start(Refused())
    try:
        raise ValueError("of the caller")
    except ValueError:
        with pytest.raises(RuntimeError, match="can't start"):
            threads.start(Refused())
