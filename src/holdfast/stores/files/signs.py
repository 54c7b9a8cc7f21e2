"""Signs: files that show volatile records to people and are never read back.

A sign follows its record a moment later. The process that changed the record writes the sign, under
a gate of its own and from the store's current state, so that the last writer shows the latest
state. A sign never fails the change that it shows, nor delays it for long. The next change of the
record, or the next opening of the store, corrects a sign that a killed or stopped process left.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.kernel.errors import HoldfastError, StoreUnavailable
from holdfast.kernel.layout import Sign
from holdfast.kernel.space import Space
from holdfast.kernel.store import Damage, Row, Store
from holdfast.stores.files.documents import parse, render
from holdfast.stores.files.folders import StoreFolders, pattern_of
from holdfast.stores.sqlite.gate import Gate
from holdfast.system.access import Access, make_folder, read_file, remove_file, replace_file

_TURN_S = 1.0
"""How long a writer of signs waits for its turn: a process stopped inside the gate must not hold up
any change.
"""

_IGNORED = (OSError, HoldfastError, ValueError, TypeError)


class Signs:
    def __init__(
        self,
        store: Store,
        folders: StoreFolders,
        shown: Mapping[Space[Any], Sign[Any]],
        access: Access,
    ) -> None:
        self._access = access
        self._store = store
        self._folders = folders
        self._shown = dict(shown)
        self._gate = self._new_gate()

    def of(self, space: Space[Any]) -> Sign[Any] | None:
        """The sign of a space; None for one that is not shown."""
        return self._shown.get(space) or (space.layout if isinstance(space.layout, Sign) else None)

    def update(self, changed: Mapping[Space[Any], Iterable[str]]) -> None:
        """Write the signs of changed records, given by their keys."""

        def work() -> None:
            for space, keys in changed.items():
                sign = self.of(space)
                for key in keys:
                    if sign is not None:
                        self._show(sign, key, self._store.get(space, key))

        self._in_turn(work)

    def update_all(self) -> None:
        """Write every sign, and remove those of records that are gone."""

        def work() -> None:
            for space, sign in self._shown.items():
                damaged: Damage = []
                rows = self._store.read(
                    lambda tx, s=space, d=damaged: tx.range(s, damaged=d),  # type: ignore[misc]
                    scope=[space],
                )
                kept = {path for row in rows if (path := self._show(sign, row.key, row))}
                for path in self._existing(sign):
                    if path not in kept and self._is_ours(path):
                        remove_file(path)

        self._in_turn(work)

    def close(self) -> None:
        self._gate.close()

    def after_fork(self) -> None:
        """In a forked child: leave the parent's gate to the parent. Raises StoreUnavailable."""
        self._gate.abandon()
        self._gate = self._new_gate()

    def _show(self, sign: Sign[Any], key: str, row: Row[Any] | None) -> Path | None:
        name = sign.called(key)
        if name is None:
            return None
        pattern = pattern_of(sign.name)
        path = self._folders.of(sign.folder) / pattern.base / pattern.path(name)
        document = None if row is None else sign.show(row.record)
        if document is None:
            remove_file(path)
            return None
        data = render(document)
        # Replaced whole, but not synced: what it shows ends with the boot anyway.
        try:
            replace_file(path, data, self._access)
        except FileNotFoundError:
            make_folder(path.parent, self._access)
            replace_file(path, data, self._access)
        return path

    def _existing(self, sign: Sign[Any]) -> list[Path]:
        pattern = pattern_of(sign.name)
        base = self._folders.of(sign.folder) / pattern.base
        names = os.listdir(base) if base.is_dir() else []
        paths = [base / pattern.path_of_component(name) for name in names if pattern.name_in(name)]
        return [path for path in paths if path.is_file() and not path.is_symlink()]

    def _is_ours(self, path: Path) -> bool:
        # Other programs keep lock files under such names.
        try:
            return isinstance(parse(read_file(path, self._access)), dict)
        except (OSError, ValueError, StoreUnavailable):
            return False

    def _new_gate(self) -> Gate:
        return Gate(self._folders.own / "signs", self._access)

    def _in_turn(self, work: Callable[[], None]) -> None:
        with contextlib.suppress(*_IGNORED):
            # Without yielding afterwards: the writer waits for its next turn at the gate of its
            # store, which is a fair one.
            self._gate.run(work, _TURN_S, sleepy=True)
