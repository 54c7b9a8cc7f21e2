"""The power-loss workload on a files store: one space with a file for each record, two with one
file, all in one change.
"""

import contextlib
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.layout import FilePerRecord, OneFile, Wire
from holdfast.kernel.space import Space
from holdfast.kernel.store import Store
from holdfast.stores.files import disk
from holdfast.stores.files.store import FilesStore
from holdfast.system.sync import sync_path
from proof.powerloss import Verdict
from tests.hazards import powerloss_workload as workload
from tests.hazards.powerloss_changes import LAST, LEFT, RIGHT, StoreCheck

STATE = "state"


def lay_out() -> None:
    """Give the workload's spaces their layouts."""

    def wire(space: Space[Any]) -> Wire[Any]:
        return Wire(to_plain, lambda key, document: space.decode(key, to_json(document)))

    LEFT.layout = FilePerRecord("lab", "left/{key}.json", wire(LEFT))
    RIGHT.layout = OneFile("lab", "right.json", wire(RIGHT))
    LAST.layout = OneFile("elsewhere", "last.json", wire(LAST), part="last")


def take_back() -> None:
    """Take them away again, for the tests of other stores."""
    for space in (LEFT, RIGHT, LAST):
        space.layout = None


class FilesWorker(workload.Worker):
    """A worker at a files store."""

    def open(self) -> Any:
        lay_out()
        return FilesStore(self.path.parent, boot_id="before")


@dataclass(frozen=True)
class FilesCheck(StoreCheck):
    """What the other check does; and that the files show what the store does, once somebody has
    been at the latch.
    """

    def __call__(self, root: Path, acknowledged: Sequence[bytes], rng: random.Random) -> Verdict:
        lay_out()
        promises = [json.loads(message) for message in acknowledged]
        try:
            with contextlib.closing(
                FilesStore(root / STATE, boot_id="after", retry_delay_s=0.0)
            ) as store:
                wrong, seen = self._compare(store, promises)
                if not wrong and rng.random() < 0.3:
                    wrong = self._use(store, promises) + self._in_files(store, root / STATE)
                    seen.append("used")
                return Verdict(wrong, seen)
        except HoldfastError as error:
            return Verdict(wrong=[f"it cannot be used, so acknowledged changes are lost: {error}"])

    def _in_files(self, store: Store, root: Path) -> list[str]:
        left = {
            path.stem: json.loads(path.read_bytes())
            for path in (root / "lab" / "left").glob("*.json")
        }
        right = json.loads((root / "lab" / "right.json").read_bytes())
        last = json.loads((root / "elsewhere" / "last.json").read_bytes())["last"]
        spaces = {LEFT: left, RIGHT: right, LAST: last}
        rows = store.read(
            lambda tx: {s.name: {r.key: to_plain(r.record) for r in tx.range(s)} for s in spaces},
            scope=[*spaces],
        )
        return [
            f"the files of {space.name} show something else"
            for space, found in spaces.items()
            if found != rows[space.name]
        ]


# --- bugs to be found ---


def lost_file_sync(_: workload.Worker) -> None:
    """A file takes its name before its content is synced."""

    class _Lying:
        def __getattr__(self, name: str) -> Any:
            if name == "fsync" and sys._getframe(1).f_code.co_name == "_stage":
                return lambda fd: None
            return getattr(os, name)

    disk.os = _Lying()  # type: ignore[attr-defined,assignment]


def lost_folder_sync(_: workload.Worker) -> None:
    """A file's new name is not synced before its redo record goes."""

    def of_files_alone(path: Any, **rest: Any) -> None:
        if rest:
            sync_path(path, **rest)

    disk.sync_path = of_files_alone  # type: ignore[attr-defined]


workload.PLANTED.update({plant.__name__: plant for plant in (lost_file_sync, lost_folder_sync)})


if __name__ == "__main__":
    workload.Worker = FilesWorker  # type: ignore[misc]
    workload.main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
