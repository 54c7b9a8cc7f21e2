"""Functions of the C library that Python does not have, for a process that must start fast."""

from __future__ import annotations


def call(name: str, *arguments: int | bytes) -> int:
    """Call a function that takes and returns C ints; -1 when it fails. Bytes are given as a pointer
    to them.
    """
    # Loading `ctypes` takes 3.6 ms, and the extension module below it 0.5 ms. Wrapper and guardian
    # both load it.
    try:
        from _ctypes import call_function, dlopen, dlsym
    except ImportError:
        import ctypes

        return int(getattr(ctypes.CDLL(None), name)(*arguments))
    return int(call_function(dlsym(dlopen(None, 0), name), arguments))  # type: ignore[arg-type]
