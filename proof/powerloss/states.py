"""A disk as a power loss may leave it: everything that was synced, and a random part of the rest."""

import os
import random
from dataclasses import dataclass
from pathlib import Path

from proof.powerloss.disk import Disk, FileOnDisk, put, rename, write
from proof.powerloss.operations import ROOT, Resized, Written

SECTOR_BYTES = 512
"""The size that a disk writes whole or not at all."""

_NOISE_BYTES_MAX = 65536


@dataclass(slots=True)
class Loss:
    """What a state lacks compared with what the running programs saw."""

    dropped: int = 0
    """Writes and cuts of which nothing is left."""
    torn: int = 0
    """Writes of which a part is left."""
    unnamed: int = 0
    """Changes to names that are lost."""

    def __bool__(self) -> bool:
        return bool(self.dropped or self.torn or self.unnamed)


class State:
    """One random state of a disk. The same disk and random numbers give the same state."""

    def __init__(
        self, disk: Disk, rng: random.Random, *, noise: frozenset[int] = frozenset()
    ) -> None:
        self.loss = Loss()
        self._disk = disk
        self._rng = rng
        self._noise = noise
        # Most states lose something everywhere; some lose only names, or only of one file.
        self._mercy = rng.choice((0.0, 0.0, 0.3, 0.7))
        self._made: dict[int, Path] = {}

    def build(self, folder: Path) -> None:
        """Make the state in an empty folder."""
        self._fill(ROOT, folder)

    def _fill(self, number: int, at: Path) -> None:
        for name, item in sorted(self._names(number).items()):
            self._make(item, at / name)

    def _make(self, item: int, path: Path) -> None:
        kind = self._disk.kinds[item]
        if kind == "folder":
            path.mkdir()
            self._fill(item, path)
        elif item in self._made:
            os.link(self._made[item], path)
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            content = (
                self._garbage() if item in self._noise else self._content(self._disk.file(item))
            )
            path.write_bytes(content)
        self._made.setdefault(item, path)

    def _names(self, number: int) -> dict[str, int]:
        folder = self._disk.folder(number)
        names = dict(folder.synced)
        kept = len(folder.pending) if self._spared() else self._rng.randint(0, len(folder.pending))
        for _, entries in folder.pending[:kept]:
            rename(names, entries)
        self.loss.unnamed += len(folder.pending) - kept
        return names

    def _content(self, file: FileOnDisk) -> bytearray:
        content = bytearray(file.synced)
        pending = file.pending
        if not pending:
            return content
        if self._spared():
            share, torn, kept = 1.0, 0.0, len(pending)
        else:
            # From nothing at all through some to all but little; or a beginning, as when the kernel
            # writes in order.
            share = self._rng.choice((0.0, 0.2, 0.5, 0.9, 1.0))
            torn = self._rng.choice((0.0, 0.1, 0.5))
            kept = self._rng.randint(0, len(pending)) if self._rng.random() < 0.5 else len(pending)
        for change in pending[:kept]:
            self._change(content, change, share, torn)
        self.loss.dropped += len(pending) - kept
        return content

    def _change(
        self, content: bytearray, change: Written | Resized, share: float, torn: float
    ) -> None:
        if isinstance(change, Written) and torn and self._rng.random() < torn:
            self._tear(content, change)
        elif self._rng.random() < share:
            put(content, change)
        else:
            self.loss.dropped += 1

    def _tear(self, content: bytearray, change: Written) -> None:
        """Apply some of a write's sectors. Without the last of them, the file may still have its
        new length.
        """
        self.loss.torn += 1
        end = change.offset + len(change.data)
        if self._rng.random() < 0.3 and end > len(content):
            content.extend(bytes(end - len(content)))
        at = change.offset
        while at < end:
            after = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end)
            if self._rng.random() < 0.5:
                write(content, at, change.data[at - change.offset : after - change.offset])
            at = after

    def _garbage(self) -> bytes:
        return self._rng.randbytes(self._rng.randint(0, _NOISE_BYTES_MAX))

    def _spared(self) -> bool:
        return self._rng.random() < self._mercy
