"""Signs: files that show volatile records to people and are never read back.

They follow the records a moment later. Whoever changed one brings its sign in step under a lock of
their own, by what the store says then, so the last to write shows the latest. A sign never fails
the change that it tells of, nor keeps it waiting for long; one that a killed or stopped process
left behind is put right by the next change of that record, or when a store is opened.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.kernel.errors import HoldfastError, StoreUnavailable
from holdfast.kernel.layout import Sign
from holdfast.kernel.order import Parts
from holdfast.kernel.space import R, Space
from holdfast.kernel.store import Damage, Row, Store, Tx
from holdfast.stores.files import documents
from holdfast.stores.files.documents import parse, render
from holdfast.stores.files.folders import Folders
from holdfast.stores.sqlite.gate import Gate
from holdfast.system.access import Access, make_folder, read_file, remove_file, replace_file

_TURN_S = 1.0
"""How long the turn to write signs is waited for: whoever is stopped in the middle must keep nobody
else from a change.
"""

_SETTLED_FAILURES = (OSError, HoldfastError, ValueError, TypeError)


class Signs:
    """The signs of a store, for those of its spaces that are shown."""

    def __init__(
        self, store: Store, folders: Folders, shown: Mapping[Space[Any], Sign[Any]], access: Access
    ) -> None:
        self._access = access
        self._store = store
        self._folders = folders
        self._shown = dict(shown)
        self._gate = self._new_gate()

    def of(self, space: Space[Any]) -> Sign[Any] | None:
        """How a space is shown; None when it is not."""
        return self._shown.get(space) or (space.layout if isinstance(space.layout, Sign) else None)

    def follow(self, touched: Mapping[Space[Any], Iterable[str]]) -> None:
        """Bring the signs of these records in step."""
        self._alone(lambda: self._follow(touched))

    def _follow(self, touched: Mapping[Space[Any], Iterable[str]]) -> None:
        for space, keys in touched.items():
            sign = self.of(space)
            for key in keys:
                if sign is not None:
                    self._show(sign, key, self._store.get(space, key))

    def begin(self) -> None:
        """Bring every sign in step, and take away those of records that are gone."""
        self._alone(self._begin)

    def close(self) -> None:
        """Show nothing more."""
        self._gate.close()

    def after_fork(self) -> None:
        """In a forked child: leave the parent's turn to the parent. Raises StoreUnavailable."""
        self._gate.abandon()
        self._gate = self._new_gate()

    def _begin(self) -> None:
        for space, sign in self._shown.items():
            damaged: Damage = []
            rows = self._store.read(
                lambda tx, s=space, d=damaged: tx.range(s, damaged=d),  # type: ignore[misc]
                scope=[space],
            )
            kept = {path for row in rows if (path := self._show(sign, row.key, row))}
            for path in self._present(sign):
                if path not in kept and _ours(path, self._access):
                    remove_file(path)

    def _show(self, sign: Sign[Any], key: str, row: Row[Any] | None) -> Path | None:
        called = sign.called(key)
        if called is None:
            return None
        pattern = documents.pattern_of(sign.name)
        path = self._folders.of(sign.folder) / pattern.base / pattern.path(called)
        document = None if row is None else sign.show(row.record)
        if document is None:
            remove_file(path)
            return None
        _write(path, render(document), self._access)
        return path

    def _present(self, sign: Sign[Any]) -> list[Path]:
        pattern = documents.pattern_of(sign.name)
        base = self._folders.of(sign.folder) / pattern.base
        names = os.listdir(base) if base.is_dir() else []
        paths = [
            base / name / pattern.rest if pattern.rest else base / name
            for name in names
            if pattern.inner(name)
        ]
        return [path for path in paths if path.is_file() and not path.is_symlink()]

    def _new_gate(self) -> Gate:
        return Gate(self._folders.own / "signs", self._access)

    def _alone(self, work: Callable[[], None]) -> None:
        """Write signs while nobody else does; not at all, if that cannot be soon."""
        with contextlib.suppress(*_SETTLED_FAILURES):
            self._gate.run(work, _TURN_S)


class NotingTx:
    """A transaction of the inner store that notes which shown records it has touched."""

    def __init__(self, tx: Tx, signs: Signs) -> None:
        self._tx = tx
        self._signs = signs
        self.touched: dict[Space[Any], set[str]] = {}

    @property
    def now(self) -> datetime:
        return self._tx.now

    @property
    def revision(self) -> int:
        return self._tx.revision

    def get(self, space: Space[R], key: str, *, expected: bool = True) -> Row[R] | None:
        return self._tx.get(space, key, expected=expected)

    def range(self, space: Space[R], **how: Any) -> list[Row[R]]:
        return self._tx.range(space, **how)

    def find(self, space: Space[R], index: str, match: Parts = (), **how: Any) -> list[Row[R]]:
        return self._tx.find(space, index, match, **how)

    def count(self, space: Space[Any], index: str | None = None, match: Parts = ()) -> int:
        return self._tx.count(space, index, match)

    def put(self, space: Space[R], key: str, record: R) -> None:
        self._note(space, key)
        self._tx.put(space, key, record)

    def delete(self, space: Space[Any], key: str) -> bool:
        self._note(space, key)
        return self._tx.delete(space, key)

    def take_first(
        self,
        space: Space[R],
        index: str,
        match: Parts = (),
        *,
        but_for: Collection[str] = (),
        damaged: Damage | None = None,
    ) -> Row[R] | None:
        return self._tx.take_first(space, index, match, but_for=but_for, damaged=damaged)

    def append(
        self, *, actor: str, kind: str, subject: str, data: dict[str, Any] | None = None
    ) -> int:
        return self._tx.append(actor=actor, kind=kind, subject=subject, data=data)

    def trim(self, *, keep: int, before: datetime, least: int = 1) -> int:
        return self._tx.trim(keep=keep, before=before, least=least)

    def notify(self, topic: str) -> None:
        self._tx.notify(topic)

    def _note(self, space: Space[Any], key: str) -> None:
        if self._signs.of(space) is not None:
            self.touched.setdefault(space, set()).add(key)


def _write(path: Path, data: bytes, access: Access) -> None:
    """Show it whole or not at all. Not synced: its truth ends with the boot too."""
    make_folder(path.parent, access)
    replace_file(path, data, access)


def _ours(path: Path, access: Access) -> bool:
    """Other programs keep lock files of such names, which are no signs."""
    try:
        return isinstance(parse(read_file(path, access)), dict)
    except (OSError, ValueError, StoreUnavailable):
        return False
