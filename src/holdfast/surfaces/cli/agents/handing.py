"""What a pane is handed that others must not read. The words of a command are everybody's to see, and those that start a tmux
server stay in the list of processes for as long as it runs: so it goes through a file that only its owner can read."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from holdfast.kernel.errors import Unavailable

_READ = '. "$0" && rm -f "$0" && exec "$@"'


@contextmanager
def handed(folder: str, environment: Mapping[str, str]) -> Iterator[str]:
    """A file with these variables for the block. Raises Unavailable when it cannot be written."""
    path = os.path.join(folder, f".pane-{os.getpid()}")
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written ({error.strerror}): name another folder with --session-root", outcome="none"
        ) from None
    try:
        with open(fd, "w") as file:
            file.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
        yield path
    finally:
        # A pane that has not read it by now does not begin any more.
        with suppress(FileNotFoundError):
            os.unlink(path)


def reading(path: str, command: Sequence[str]) -> list[str]:
    """The command, begun in the same process once the file's variables are read and the file is gone."""
    return ["sh", "-c", _READ, path, *command]
