"""A command in custody whose input is written, and whose output is read by line, in threads."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence

from holdfast.kernel.errors import NotFound, Unavailable
from holdfast.kernel.limits import TREE_GRACE_S
from holdfast.processes.command import Command, two_pipes
from holdfast.processes.trees import SharedTree, Trees

# How long to wait for the last output when the tree is gone. A process outside of the tree may have
# inherited the pipe, as a tmux server can.
_OUTPUT_S = 1.0


class PipedCommand:
    """A running command with a session of its own, which is ended when this process dies.
    `each_line` gets each line of its output, in a thread. See `Command` for the other arguments.
    Raises Unavailable when it cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        trees: Trees,
        *,
        cwd: str | None,
        environment: Mapping[str, str],
        stdin: bytes,
        each_line: Callable[[bytes], None],
        adopts: bool = False,
        tree: str | None = None,
        within: SharedTree | None = None,
        grace_s: float = TREE_GRACE_S,
    ) -> None:
        self._words = words
        self._cwd = cwd
        self._each_line = each_line
        its_input, self._input, self._output, its_output = two_pipes()
        try:
            self._command = Command(
                words,
                leader=True,
                bound=True,
                adopts=adopts,
                cwd=cwd,
                environment=environment,
                stdin=its_input,
                stdout=its_output,
                tree=tree,
                within=within,
                grace_s=grace_s,
            )
            try:
                self._command.begin(trees, {})
            except BaseException:
                self._command.close()
                raise
        except BaseException:
            os.close(self._input)
            os.close(self._output)
            raise
        finally:
            os.close(its_input)
            os.close(its_output)
        self._threads = [
            threading.Thread(target=self._feed, args=(stdin,), daemon=True),
            threading.Thread(target=self._read, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._command.pid

    @property
    def guardian(self) -> int:
        return self._command.guardian

    @property
    def fd(self) -> int:
        """Readable when there is news of the command."""
        return self._command.fd

    @property
    def unguarded(self) -> bool:
        return self._command.unguarded

    def over(self) -> bool:
        """Has the command ended, or lost its guardian? Never waits. Its tree may live on."""
        return self._command.poll() is not None or self._command.unguarded

    def end_tree(self) -> None:
        self._command.end_tree()

    def wait_for_tree(self, timeout_s: float | None = None) -> bool:
        return self._command.wait_for_tree(timeout_s)

    def close(self) -> int:
        """Wait for the last output of a tree that is gone; return the exit status, negative for a
        signal. Raises NotFound when there is no such command or folder, and Unavailable when the
        command could not be executed.
        """
        code = self._command.wait()
        for thread in self._threads:
            thread.join(_OUTPUT_S)
        self._command.close()
        if self._command.unfit is not None:
            raise self._not_executed(self._command.unfit)
        return code

    def _not_executed(self, why: OSError) -> NotFound | Unavailable:
        if isinstance(why, FileNotFoundError):
            missing = (
                f"the command {self._words[0]}"
                if self._cwd is None or os.path.isdir(self._cwd)
                else f"the folder {self._cwd}"
            )
            return NotFound(f"{missing} is not there: name one that is", command=self._words[0])
        where = "" if self._cwd is None else f" in {self._cwd}"
        return Unavailable(
            f"{self._words[0]} cannot be started{where}: {why.strerror}", outcome="none"
        )

    def _feed(self, content: bytes) -> None:
        try:
            with open(self._input, "wb") as pipe:
                pipe.write(content)
        except (BrokenPipeError, ConnectionResetError):
            # A command need not read its input.
            return

    def _read(self) -> None:
        with open(self._output, "rb") as pipe:
            for line in pipe:
                self._each_line(line)
