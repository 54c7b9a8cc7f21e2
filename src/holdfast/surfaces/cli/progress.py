"""A sign of life of work that takes long, for whoever watches a terminal."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_SIGN_S = 1.0
"""How long nothing is said, and then between one sign and the next."""


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal that the work of the block goes on, and for how long it has, as soon as
    that is longer than a moment.

    It stands on standard error and is gone when the block ends. Anywhere but on a terminal nothing
    is said.
    """
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield
        return
    over = threading.Event()
    teller = threading.Thread(
        target=_tell, args=(stream, what, over), name="holdfast-progress", daemon=True
    )
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def _tell(stream: TextIO, what: str, over: threading.Event) -> None:
    begun_s, line = time.monotonic(), ""
    try:
        while not over.wait(_SIGN_S):
            line = f"holdfast: {what}: {time.monotonic() - begun_s:.0f} s so far"
            stream.write(f"\r{line}")
            stream.flush()
        stream.write(f"\r{' ' * len(line)}\r" if line else "")
        stream.flush()
    except OSError:
        # The terminal is gone; the work is not.
        return
