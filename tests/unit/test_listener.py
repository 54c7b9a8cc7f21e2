"""The switchboard: listeners of one process."""

import os

import pytest

from holdfast.stores.listener import Switchboard


@pytest.mark.parametrize("everybody", [False, True])
def test_a_listener_freed_while_others_are_woken_is_not_written_to(
    monkeypatch: pytest.MonkeyPatch, everybody: bool
) -> None:
    """The garbage collector may free a listener between two writes, in the thread that notifies.
    Its number may be another file's by then.
    """
    board = Switchboard()
    listeners = [board.listen(["topic"]) for _ in range(3)]
    written: list[int] = []
    write = os.eventfd_write

    def free_the_others(fd: int, value: int) -> None:
        write(fd, value)
        if not written:
            for listener in listeners:
                if not listener.wait(0).notified:
                    listener.__exit__()
        written.append(fd)

    monkeypatch.setattr(os, "eventfd_write", free_the_others)
    if everybody:
        board.notify_all()
    else:
        board.notify("topic")
    assert len(set(written)) == 1
    for listener in listeners:
        listener.__exit__()
