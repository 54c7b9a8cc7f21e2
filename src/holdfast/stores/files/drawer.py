"""The files of one space that has a file for each record, as this process last saw them, and which of them to look at again."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic

from holdfast.kernel.layout import FilePerRecord
from holdfast.kernel.limits import FILES_WATCHED_FROM
from holdfast.kernel.space import R, Space
from holdfast.stores.files import naming
from holdfast.stores.files.disk import Disk, Signature, Spot, Unfit, signature_of, signature_of_stat, unreadable
from holdfast.stores.files.pile import Entry, Pile, damaged
from holdfast.stores.files.sheet import parse
from holdfast.stores.files.watch import Watch

Keys = Callable[[], Iterable[str]]
"""Every key that the store knows of a space, to tell the keys of hashed names."""


class Drawer(Generic[R]):
    """The records of a folder. Safe for threads, which wait for each other here: what one was told of, no other is told again.

    A file is read again when its signature has changed. In a folder of many files the kernel tells whose to look at; else
    each is looked at, every time.
    """

    def __init__(self, space: Space[R], layout: FilePerRecord[R], folder: Path, disk: Disk) -> None:
        self._space = space
        self._disk = disk
        self._pattern = naming.pattern_of(layout.name)
        self._folder = folder / self._pattern.base
        self._mutex = threading.Lock()
        self._watch = Watch(self._folder)
        self._pile = Pile(space, layout.wire, {})
        self._news: dict[str, Entry[R] | None] = {}
        """What was learnt since the pile was made."""
        self._signatures: dict[str, Signature] = {}
        """By key; not of a file that was so young when it was read that its signature proves nothing."""
        self._keys: dict[str, str] = {}
        """By the name in the folder."""
        self._suspects: set[str] = set()
        """Names to look at. They stay until that has succeeded."""
        self._any_suspect = True

    def one(self, key: str) -> Entry[R] | None:
        """The record in the file of a key. Raises StoreUnavailable."""
        with self._mutex:
            signature = signature_of(self._spot(key).path)
            if signature is None:
                return None
            if signature == self._signatures.get(key):
                return self._known(key)
            signature, entry = self._read(key)
            if signature is not None:
                self._learn(self._pattern.component(key), key, signature, entry)
            return entry

    def all(self, known: Keys) -> Pile[R]:
        """The records of all files. Raises StoreUnavailable."""
        with self._mutex:
            told = self._told()
            if told is None:
                self._any_suspect = True
            else:
                self._suspects.update(filter(self._pattern.inner, told))
            if self._any_suspect:
                self._look_at_all(known)
            else:
                for name in list(self._suspects):
                    self._look_at(name, signature_of(self._path(name)), known)
            if self._news:
                self._pile, self._news = self._pile.changed(self._news), {}
            return self._pile

    def wrote(self, key: str, entry: Entry[R] | None) -> None:
        """This process has just put a record in its place, with nobody else at the latch; None: it has removed it."""
        with self._mutex:
            signature = None if entry is None else signature_of(self._spot(key).path)
            self._learn(self._pattern.component(key), key, signature, entry)

    def _told(self) -> set[str] | None:
        """The names that the kernel tells of. It tells of this folder alone, not of those in it."""
        if self._pattern.rest or len(self._keys) < FILES_WATCHED_FROM:
            self._watch.end()
            return None
        return self._watch.changed()

    def _look_at_all(self, known: Keys) -> None:
        seen: set[str] = set()
        for name, signature in self._listed():
            seen.add(name)
            self._look_at(name, signature, known)
        for name in self._keys.keys() - seen:
            self._look_at(name, None, known)
        self._suspects &= seen
        self._any_suspect = False

    def _look_at(self, name: str, signature: Signature | None, known: Keys) -> None:
        key = self._keys.get(name) or self._key_of(name, known)
        if key is not None and (signature is None or signature != self._signatures.get(key)):
            signature, entry = (None, None) if signature is None else self._read(key)
            self._learn(name, key, signature, entry)
        self._suspects.discard(name)
        if key is None and naming.hashed(name.removeprefix(self._pattern.prefix)):
            # Only the store can tell whose it is, and may be about to.
            self._suspects.add(name)

    def _key_of(self, name: str, known: Keys) -> str | None:
        inner = self._pattern.inner(name) or ""
        return naming.key_of(inner, known() if naming.hashed(inner) else ())

    def _learn(self, name: str, key: str, signature: Signature | None, entry: Entry[R] | None) -> None:
        if entry is not self._known(key):
            self._news[key] = entry
        if entry is None:
            self._keys.pop(name, None)
        else:
            self._keys[name] = key
        if entry is None or signature is None:
            self._signatures.pop(key, None)
        else:
            self._signatures[key] = signature

    def _known(self, key: str) -> Entry[R] | None:
        return self._news[key] if key in self._news else self._pile.entries.get(key)

    def _read(self, key: str) -> tuple[Signature | None, Entry[R] | None]:
        try:
            found = self._disk.read(self._spot(key))
        except Unfit as error:
            return None, Entry(None, error=damaged(self._space, key, str(error), malformed=True))
        if found is None:
            return None, None
        return found.signature if found.sure else None, entry_of(self._space, key, found.data)

    def _listed(self) -> Iterator[tuple[str, Signature | None]]:
        """Every name of the folder that may be a record's, and the signature of its file."""
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if self._pattern.inner(entry.name):
                        yield entry.name, self._signature(entry)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise unreadable(self._folder, error) from None

    def _signature(self, entry: "os.DirEntry[str]") -> Signature | None:
        if self._pattern.rest:
            return signature_of(self._path(entry.name))
        try:
            return signature_of_stat(entry.stat(follow_symlinks=False))
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return f"{self._folder}/{self._pattern.beneath(name)}"

    def _spot(self, key: str) -> Spot:
        return Spot(self._folder, self._pattern.path(key))


def entry_of(space: Space[R], key: str, data: bytes) -> Entry[R]:
    """What stands in the file of a record."""
    try:
        return Entry(parse(data))
    except ValueError as error:
        return Entry(None, error=damaged(space, key, str(error), malformed=True))
