"""The tree of a process that runs several commands: each command's tree is a part of it.

A claim can name such a tree before it is known which command will run under it.
"""

from holdfast.processes import fifo
from holdfast.processes.trees import Trees, new_id


class SharedTree:
    """A tree that lives as long as this process and its commands. Raises StoreUnavailable
    when its FIFO cannot be made.
    """

    def __init__(self, trees: Trees) -> None:
        self.id = new_id()
        self.path = trees.begin(self.id)
        trees.sweep()
        self.parts: set[str] = set()
        """The trees of commands that may have live processes."""

    def close(self) -> None:
        """Remove the FIFO. While a part still lives, the guardian of that part removes it."""
        if self.path is not None and not self.parts:
            fifo.remove(self.path)
