"""Long texts for a command: from standard input or from a file, since Linux takes no argument
longer than 128 kB.
"""

import sys
from pathlib import Path

from holdfast.kernel.errors import InvalidValue

STDIN = "-"
"""What stands for standard input, as for other programs."""


def read_stdin(what: str) -> str:
    """Standard input to its end, without its last line break.

    Raises InvalidValue when there is none or it is not UTF-8.
    """
    if sys.stdin is None:
        raise InvalidValue(f"there is no {what}: standard input is closed", field=what)
    return _decoded(sys.stdin.buffer.read(), what)


def read_file(path: str, what: str) -> str:
    """A file, without its last line break; `-` is standard input.

    Raises InvalidValue when it cannot be read.
    """
    if path == STDIN:
        return read_stdin(what)
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidValue(
            f"the {what} cannot be read from {ascii(path)[:200]}: {why}", field=what
        ) from None
    return _decoded(content, what)


def _decoded(content: bytes, what: str) -> str:
    try:
        return content.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidValue(
            f"the {what} is not UTF-8: {error.reason} at byte {error.start}", field=what
        ) from None
