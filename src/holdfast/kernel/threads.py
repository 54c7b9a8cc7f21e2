"""Starting a thread from a call that Ctrl-C may end."""

import sys
from threading import Thread


def start(thread: Thread) -> None:
    """Start a thread. An exception of a signal handler comes through; the thread may run anyway."""
    # `Thread.start` waits on a Condition. A signal just after the Condition has released its lock
    # makes Python release it again, and that RuntimeError hides the KeyboardInterrupt.
    outer = sys.exception()
    try:
        thread.start()
    except RuntimeError as error:
        if error.__context__ is not None and error.__context__ is not outer:
            raise error.__context__ from None
        raise
