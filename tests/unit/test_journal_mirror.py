"""The file that follows the journal: every line once, wherever a writer was killed and whatever
another program appends.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec
import pytest

from holdfast.adapters.journal_mirror import JournalMirror
from holdfast.kernel.store import Entry
from holdfast.primitives.journal import Journal
from holdfast.stores.memory import MemoryStore
from holdfast.system.flock import FlockContender, FlockLock
from tests.harness.timeouts import PATIENCE_S

FOREIGN = b"another program was here\n"


class Mirrored:
    """A journal, the file that follows it, and what was warned of."""

    def __init__(self, folder: Path, *, from_now: bool = False) -> None:
        self.store = MemoryStore()
        self.journal = Journal(self.store, actor="tester")
        self.path, self.mark = folder / "log", folder / "log.cursor"
        self.warned: list[Exception] = []
        self.mirror = self.another(from_now=from_now)

    def another(
        self, *, from_now: bool = False, boot_id: str = "", now_s: Callable[[], float] = lambda: 0.0
    ) -> JournalMirror:
        return JournalMirror(
            self.path,
            self.mark,
            self.journal,
            line_of,
            lambda _, error: self.warned.append(error),
            from_now=from_now,
            boot_id=boot_id,
            now_s=now_s,
        )

    def happen(self, *subjects: str, kind: str = "mine.happened") -> None:
        for subject in subjects:
            self.store.transact(
                partial(self.journal.append, kind=kind, subject=subject),
                scope=[],
            )

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().split(b"\n")[:-1]

    def subjects(self) -> list[str]:
        """Of the lines that are ours."""
        found = []
        for line in self.lines():
            try:
                found.append(msgspec.json.decode(line)["subject"])
            except msgspec.DecodeError:
                continue
        return found


def line_of(entry: Entry) -> dict[str, object] | None:
    return (
        {"subject": entry.subject, "revision": entry.revision}
        if entry.kind.startswith("mine.")
        else None
    )


@pytest.fixture
def mirrored(tmp_path: Path) -> Iterator[Mirrored]:
    made = Mirrored(tmp_path)
    with closing(made.store):
        yield made


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("foreign", [b"", FOREIGN, b"half a line", FOREIGN + b"{", b"\n"])
def test_a_writer_killed_after_any_number_of_bytes(
    mirrored: Mirrored, foreign: bytes, lost: bool
) -> None:
    """What another program appends after that is left as it is; only a line that it was put into
    cannot be read.
    """
    mirrored.happen("a")
    mirrored.mirror.catch_up()
    before, mark = mirrored.path.read_bytes(), mirrored.mark.read_bytes()
    mirrored.happen("b", "c")
    mirrored.mirror.catch_up()
    after = mirrored.path.read_bytes()
    for written in range(len(before), len(after) + 1):
        mirrored.path.write_bytes(after[:written] + foreign)
        mirrored.mark.write_bytes(b"" if lost else mark)
        mirrored.another().catch_up()
        now = mirrored.path.read_bytes()
        assert now.startswith(after[:written] + foreign), written
        assert sorted(mirrored.subjects()) == ["a", "b", "c"], (written, now)
        assert now.endswith(b"\n") or (foreign and written == len(after)), (written, now)
        if not foreign:
            assert now == after
    assert mirrored.warned == []


def test_another_program_that_is_within_a_line_keeps_it(mirrored: Mirrored) -> None:
    mirrored.happen("a")
    mirrored.mirror.catch_up()
    for subject, piece in (("b", b"{"), ("c", b'{"subject"'), ("d", b"}")):
        with mirrored.path.open("ab") as file:
            file.write(FOREIGN + b"x" + piece)
        mirrored.happen(subject)
        mirrored.mirror.catch_up()
    assert mirrored.subjects() == ["a", "b", "c", "d"]
    assert mirrored.lines().count(FOREIGN[:-1]) == 3


def test_a_foreign_half_line_at_the_mark_is_not_taken_for_ours(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came between our line and the check of the file's length."""
    fdatasync = os.fdatasync

    def late(fd: int) -> None:
        fdatasync(fd)
        os.write(fd, b"half {")
        monkeypatch.undo()

    monkeypatch.setattr(os, "fdatasync", late)
    mirrored.happen("a")
    mirrored.mirror.catch_up()
    mirrored.happen("b")
    mirrored.mirror.catch_up()
    assert mirrored.subjects() == ["a", "b"]
    assert mirrored.lines()[1] == b"half {"


def test_a_full_disk_is_a_warning_and_is_made_good(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    room = [10]

    def full(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    mirrored.happen("a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        mirrored.mirror.catch_up()
    assert len(mirrored.warned) == 1 and mirrored.path.stat().st_size == 10
    mirrored.mirror.catch_up()
    assert mirrored.subjects() == ["a", "b"] and len(mirrored.lines()) == 2


class Disk:
    """What would survive a power loss of a mirror's two files: the file as it was last synced, and
    the mark in its last state, which the kernel may have written at any moment.
    """

    def __init__(self, mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mirrored = mirrored
        self.synced = b""
        self.syncs: list[str] = []
        fdatasync = os.fdatasync

        def note(fd: int) -> None:
            fdatasync(fd)
            self.synced = mirrored.path.read_bytes()
            self.syncs.append("file")

        monkeypatch.setattr(os, "fdatasync", note)
        monkeypatch.setattr(os, "sync", lambda: self.syncs.append("all"))

    def lose_power(self) -> None:
        self._mirrored.path.write_bytes(self.synced)


def test_the_lines_of_a_second_share_a_sync(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, now_s = Disk(mirrored, monkeypatch), [100.0]
    mirror = mirrored.another(boot_id="one", now_s=lambda: now_s[0])
    for subject, at_s, syncs in (("a", 100, 1), ("b", 100.9, 1), ("c", 101, 2), ("d", 99, 3)):
        now_s[0] = at_s
        mirrored.happen(subject)
        mirror.catch_up()
        assert (subject, len(disk.syncs)) == (subject, syncs)
    assert mirrored.subjects() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("foreign", [b"", FOREIGN, b"half a line"])
@pytest.mark.parametrize("survived", [0, 7, 1000])
def test_lines_that_a_power_loss_took_are_written_again(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, survived: int, foreign: bytes
) -> None:
    """`survived` bytes of what was not synced are there all the same."""
    disk = Disk(mirrored, monkeypatch)
    mirror = mirrored.another(boot_id="one")
    for subject in ("a", "b", "c"):
        mirrored.happen(subject)
        mirror.catch_up()
    whole = mirrored.path.read_bytes()
    assert disk.syncs == ["file"] and len(disk.synced) < len(whole)
    mirrored.path.write_bytes(whole[: len(disk.synced) + survived] + foreign)
    mirrored.happen("d")
    mirrored.another(boot_id="two").catch_up()
    assert mirrored.subjects() == ["a", "b", "c", "d"]
    assert disk.syncs == ["file", "file"] and mirrored.warned == []
    if not foreign:
        assert mirrored.path.read_bytes().startswith(whole)


def test_a_mirror_that_syncs_each_time_trusts_no_unsynced_mark(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(mirrored, monkeypatch)
    mirror = mirrored.another(boot_id="one")
    for subject in ("a", "b"):
        mirrored.happen(subject)
        mirror.catch_up()
    disk.lose_power()
    assert mirrored.another().lag().entries == 1
    mirrored.another().catch_up()
    assert mirrored.subjects() == ["a", "b"]


@pytest.mark.parametrize("emptied", [False, True])
def test_unsynced_lines_are_synced_before_they_are_forgotten(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    """Somebody has moved the file away, or has copied and emptied it."""
    disk = Disk(mirrored, monkeypatch)
    mirror = mirrored.another(boot_id="one")
    for subject in ("a", "b"):
        mirrored.happen(subject)
        mirror.catch_up()
    mirrored.path.rename(mirrored.path.with_suffix(".1"))
    if emptied:
        mirrored.path.with_suffix(".1").rename(mirrored.path)
        os.truncate(mirrored.path, 0)
    mirrored.happen("c")
    mirror.catch_up()
    assert mirrored.subjects() == ["c"]
    assert disk.syncs == ["file", "all", "file"]


def test_a_repeated_failure_is_warned_of_once_until_it_succeeds(mirrored: Mirrored) -> None:
    for _ in range(2):
        mirrored.path.mkdir()
        for _ in range(3):
            mirrored.happen("a")
            mirrored.mirror.catch_up()
        mirrored.path.rmdir()
        mirrored.mirror.catch_up()
        mirrored.path.unlink()
    assert len(mirrored.warned) == 2


def test_a_log_that_was_moved_away_by_a_reader_as_its_writer_was_killed(mirrored: Mirrored) -> None:
    mirrored.happen("a")
    mirrored.mirror.catch_up()
    mark = mirrored.mark.read_bytes()
    mirrored.path.rename(mirrored.path.with_suffix(".1"))
    mirrored.happen("b")
    mirrored.mirror.catch_up()
    mirrored.mark.write_bytes(mark)
    mirrored.another().catch_up()
    assert mirrored.subjects() == ["b"]


def test_a_busy_mirror_is_left_to_its_writer(mirrored: Mirrored) -> None:
    mirrored.happen("a")
    with closing(FlockLock(mirrored.mark).contender()) as other:
        assert other.try_take()
        mirrored.mirror.catch_up()
        assert not mirrored.path.exists()
    mirrored.mirror.catch_up()
    assert mirrored.subjects() == ["a"] and mirrored.warned == []


def test_the_running_writer_checks_again_after_letting_others_in(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second change comes when the first writer has checked for the last time, and the second
    writer's own try fails.
    """
    close = FlockContender.close
    first = [True]

    def late(contender: FlockContender) -> None:
        # Not the contenders of other tests, which the garbage collector closes at any moment.
        if contender.has_it() and first and first.pop():
            mirrored.happen("b")
            mirrored.another().catch_up()
            assert mirrored.subjects() == ["a"]
        close(contender)

    monkeypatch.setattr(FlockContender, "close", late)
    mirrored.happen("a")
    mirrored.mirror.catch_up()
    assert mirrored.subjects() == ["a", "b"]


def test_many_at_once_write_each_line_once(mirrored: Mirrored) -> None:
    def work(who: int) -> None:
        mine = mirrored.another()
        for at in range(20):
            mirrored.happen(f"{who}-{at}")
            mine.catch_up()

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    mirrored.mirror.catch_up()
    revisions = [msgspec.json.decode(line)["revision"] for line in mirrored.lines()]
    assert len(revisions) == 80 and revisions == sorted(set(revisions))
    assert mirrored.warned == []


def test_what_is_made_is_its_owners_alone_and_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    made = Mirrored(tmp_path, from_now=True)
    made.happen("a")
    made.mirror.catch_up()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (made.path, made.mark)] == [0o600, 0o600]
    made.path.chmod(0o640)
    made.happen("b")
    made.mirror.catch_up()
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.cursor"]


def test_a_link_is_not_followed(mirrored: Mirrored, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"")
    mirrored.path.symlink_to(tmp_path / "precious")
    mirrored.happen("a")
    mirrored.mirror.catch_up()
    assert len(mirrored.warned) == 1 and (tmp_path / "precious").read_bytes() == b""


def test_entries_that_are_not_mirrored_move_the_cursor_and_make_no_file(mirrored: Mirrored) -> None:
    mirrored.happen("a", kind="others.happened")
    mirrored.mirror.catch_up()
    assert not mirrored.path.exists() and mirrored.mark.stat().st_size > 0


def test_a_file_of_another_begins_with_what_happens_from_now_on(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(FOREIGN)
    made = Mirrored(tmp_path)
    made.happen("before")
    made.mirror = made.another(from_now=True)
    made.happen("a")
    made.mirror.catch_up()
    assert made.path.read_bytes().startswith(FOREIGN) and made.subjects() == ["a"]


def test_a_mark_of_another_kind_of_store_is_not_the_end_of_the_log(mirrored: Mirrored) -> None:
    """The store was copied to one of another kind, with its journal; what the file has already is
    not told again.
    """
    mirrored.happen("one", "two")
    mirrored.mirror.catch_up()
    mark = msgspec.json.decode(mirrored.mark.read_bytes())
    mirrored.mark.write_bytes(msgspec.json.encode({**mark, "cursor": "7.8.9"}))
    mirrored.happen("three")
    mirrored.another().catch_up()
    assert mirrored.subjects() == ["one", "two", "three"]
    assert mirrored.warned == []
