"""The embedded store that is not there yet: empty to readers, closed to writers."""

from pathlib import Path
from typing import Any, NoReturn

from holdfast.kernel.errors import NotFound
from holdfast.stores.memory import MemoryStore


class AbsentStore(MemoryStore):
    """Stands for a SQLite file or a folder that nobody has made, so that looking at it makes
    nothing.

    Promised: every read answers as an empty store would. Not promised: that it notices when it is
    made. Raises NotFound for a change and for listening, which nobody would ever answer.
    """

    ephemeral = False

    def __init__(self, path: Path, *, namespace: str, kind: str) -> None:
        super().__init__(namespace=namespace)
        self.kind = kind
        self.path = self.anchor = path

    def side_folder(self, purpose: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{purpose}")

    def transact(self, *_: Any, **__: Any) -> NoReturn:
        raise self._no_store()

    def listen(self, *_: Any, **__: Any) -> NoReturn:
        raise self._no_store()

    def _no_store(self) -> NotFound:
        return NotFound(
            f"there is no store {self.path} yet: connect with create=True to make it",
            path=str(self.path),
        )
