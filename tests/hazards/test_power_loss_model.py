"""The power-loss simulator itself: what it reads from strace, what its disk keeps, what it
refuses.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from proof.powerloss import Report, Trace, TraceError, examine, record, why_not
from proof.powerloss.calls import escaped
from proof.powerloss.disk import Disk
from proof.powerloss.operations import Acknowledged, Named, Written
from proof.powerloss.states import State
from proof.powerloss.trace import trace
from tests.harness.requirements import skip_or_fail
from tests.hazards import powerloss_renames

ROOT = "/r"
FLAGS = "O_RDWR|O_CREAT|O_CLOEXEC, 0600"


def h(text: str) -> str:
    return f'"{escaped(text)}"'


def at(fd: int, name: str) -> str:
    return f"{fd}<{escaped(f'{ROOT}/{name}' if name else ROOT)}>"


def opened(name: str, fd: int, *, pid: int = 1, flags: str = FLAGS) -> str:
    return (
        f"{pid}  openat(AT_FDCWD<{escaped('/elsewhere')}>, {h(f'{ROOT}/{name}')}, {flags}) = "
        f"{at(fd, name)}"
    )


def wrote(name: str, fd: int, data: str, offset: int, *, pid: int = 1) -> str:
    return f"{pid}  pwrite64({at(fd, name)}, {h(data)}, {len(data)}, {offset}) = {len(data)}"


def synced(name: str, fd: int, *, pid: int = 1) -> str:
    return f"{pid}  fsync({at(fd, name)}) = 0"


def read(*lines: str, mapped: tuple[str, ...] = ()) -> Trace:
    return trace(lines, root=ROOT, acknowledgements="/acks", mapped=mapped)


def written(found: Trace) -> list[tuple[str, int, bytes]]:
    return [
        (found.names[op.file], op.offset, op.data)
        for op in found.operations
        if isinstance(op, Written)
    ]


def states(found: Trace, folder: Path, *, number: int = 200) -> set[tuple[tuple[str, bytes], ...]]:
    """The different states at the end of a trace, as names and contents."""
    disk = Disk(found.kinds)
    for operation in found.operations:
        disk.apply(operation)
    seen = set()
    for seed in range(number):
        root = folder / str(seed)
        root.mkdir(parents=True)
        State(disk, random.Random(seed), noise=found.noise).build(root)
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        seen.add(tuple((str(path.relative_to(root)), path.read_bytes()) for path in files))
    return seen


FOLDER = (opened("", 9, flags="O_RDONLY|O_DIRECTORY"), synced("", 9))
"""Opens and syncs the root."""


# --- reading ---


def test_what_is_used_before_its_makers_call_is_written_down_was_made_before() -> None:
    found = read(
        f"1  mkdirat({at(9, '')}, {h('f')}, 0700 <unfinished ...>",
        f"2  openat({at(9, '')}, {h('f/new')}, {FLAGS} <unfinished ...>",
        f"2  <... openat resumed>) = {at(3, 'f/new')}",
        f"2  renameat2({at(9, '')}, {h('f/new')}, {at(9, '')}, {h('f/a')}, RENAME_NOREPLACE "
        "<unfinished ...>",
        f"3  openat({at(9, '')}, {h('f/a')}, O_RDONLY <unfinished ...>",
        f"3  <... openat resumed>) = {at(4, 'f/a')}",
        "2  <... renameat2 resumed>) = 0",
        "1  <... mkdirat resumed>) = 0",
        wrote("f/a", 3, "x", 0, pid=2),
    )
    assert written(found) == [("f/a", 0, b"x")]


def test_a_file_is_made_once_though_another_opens_it_before_that_is_written_down() -> None:
    found = read(
        f"1  openat({at(9, '')}, {h('a')}, {FLAGS} <unfinished ...>",
        opened("a", 4, pid=2, flags="O_WRONLY"),
        f"1  <... openat resumed>) = {at(3, 'a')}",
        wrote("a", 3, "x", 0),
        wrote("a", 4, "y", 1, pid=2),
    )
    assert written(found) == [("a", 0, b"x"), ("a", 1, b"y")]
    assert len({op.file for op in found.operations if isinstance(op, Written)}) == 1


def test_opening_a_file_that_nobody_made_is_an_error() -> None:
    with pytest.raises(TraceError, match="nobody had made it"):
        read(opened("a", 3, flags="O_RDONLY"), f"1  mkdirat({at(9, '')}, {h('a')}, 0700) = 0")


def test_a_call_in_two_lines_is_one() -> None:
    found = read(
        opened("a", 3),
        f"1  pwrite64({at(3, 'a')}, {h('xy')}, 2, 7 <unfinished ...>",
        "2  read(0x0, 0x7f00, 0x10) = 0x10",
        "1  <... pwrite64 resumed>) = 2",
    )
    assert written(found) == [("a", 7, b"xy")]
    assert (found.operations[-1].begun, found.operations[-1].done) == (1, 3)


def test_failed_short_and_unreturned_writes() -> None:
    found = read(
        opened("a", 3),
        f"1  pwrite64({at(3, 'a')}, {h('lost')}, 4, 0) = -1 ENOSPC (No space left on device)",
        f"1  pwrite64({at(3, 'a')}, {h('short')}, 5, 0) = 2",
        f"1  pwrite64({at(3, 'a')}, {h('killed')}, 6, 0 <unfinished ...>",
    )
    assert written(found) == [("a", 0, b"sh")]


def test_places_move_with_writes_reads_seeks_and_appends() -> None:
    found = read(
        opened("a", 3),
        f"1  write({at(3, 'a')}, {h('abc')}, 3) = 3",
        "1  read(0x3, 0x7f00, 0x10) = 0x2",
        f"1  write({at(3, 'a')}, {h('d')}, 1) = 1",
        f"1  lseek({at(3, 'a')}, 1, SEEK_SET) = 1",
        f"1  writev({at(3, 'a')}, [{{iov_base={h('e')}, iov_len=1}}, "
        f"{{iov_base={h('f')}, iov_len=1}}], 2) = 2",
        f"1  dup({at(3, 'a')}) = {at(4, 'a')}",
        f"1  write({at(4, 'a')}, {h('g')}, 1) = 1",
        opened("a", 5, flags="O_WRONLY|O_APPEND"),
        f"1  write({at(5, 'a')}, {h('h')}, 1) = 1",
    )
    assert written(found) == [
        ("a", 0, b"abc"), ("a", 5, b"d"), ("a", 1, b"ef"), ("a", 3, b"g"), ("a", 6, b"h"),
    ]  # fmt: skip


def test_a_child_that_runs_before_its_fork_returns_has_a_copy_and_a_thread_shares() -> None:
    found = read(
        opened("a", 3),
        "1  clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD <unfinished ...>",
        wrote("a", 3, "child", 0, pid=2),
        opened("b", 4, pid=2),
        "1  <... clone resumed>, child_tidptr=0x7f) = 2",
        opened("c", 4),
        "1  clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD, exit_signal=0}, 88) = 3",
        opened("d", 5, pid=3),
        wrote("c", 4, "thread", 0, pid=3),
        wrote("d", 5, "parent", 0),
        wrote("b", 4, "child", 0, pid=2),
    )
    assert [(name, data) for name, _, data in written(found)] == [
        ("a", b"child"), ("c", b"thread"), ("d", b"parent"), ("b", b"child"),
    ]  # fmt: skip


def test_a_descriptor_reused_during_its_close_is_the_new_file() -> None:
    found = read(
        opened("a", 3),
        "1  clone3({flags=CLONE_VM|CLONE_FILES|CLONE_THREAD, exit_signal=0}, 88) = 2",
        f"1  close({at(3, 'a')} <unfinished ...>",
        opened("b", 3, pid=2),
        "1  <... close resumed>) = 0",
        wrote("b", 3, "x", 0, pid=2),
    )
    assert written(found) == [("b", 0, b"x")]


def test_a_deleted_file_is_not_the_new_one_of_its_name() -> None:
    found = read(
        opened("a", 3),
        f"1  unlink({h('/r/a')}) = 0",
        opened("a", 4),
        f"1  pwrite64({at(3, 'a')}(deleted), {h('old')}, 3, 0) = 3",
        wrote("a", 4, "new", 0),
    )
    old, new = (op for op in found.operations if isinstance(op, Written))
    assert old.file != new.file
    assert [
        entry.item for op in found.operations if isinstance(op, Named) for entry in op.entries
    ] == [
        old.file,
        None,
        new.file,
    ]


def test_an_acknowledgement_counts_from_its_entry() -> None:
    found = read(
        f"1  write(4<{escaped('/acks')}>, {h('done')}, 4 <unfinished ...>",
        "2  sync() = 0",
        "1  <... write resumed>) = 4",
    )
    assert isinstance(found.operations[0], Acknowledged)
    assert found.operations[0].message == b"done"


@pytest.mark.parametrize(
    "line",
    [
        f"1  mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, {at(3, 'a')}, 0) = 0x7f00",
        opened("a", 4, flags="O_RDWR|O_DSYNC"),
        f"1  copy_file_range({at(3, 'a')}, NULL, 5<{escaped('/x')}>, NULL, 10, 0) = 10",
        f"1  symlink({h('x')}, {h('/r/s')}) = 0",
        f"1  rename({h('/x')}, {h('/r/b')}) = 0",
        f"1  fallocate({at(3, 'a')}, FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE, 0, 4096) = 0",
        wrote("a", 7, "who opened that?", 0),
        opened("never made", 4, flags="O_RDONLY"),
        f"1  unlink({h('/r/never made')}) = 0",
        f"1  pwrite64({at(3, 'a')}, {h('cut')}..., 9999, 0) = 9999",
        f"1  chdir({h('/r')}) = 0",
    ],
)
def test_what_is_not_followed_is_refused(line: str) -> None:
    read(opened("a", 3))
    with pytest.raises(TraceError, match="line 2"):
        read(opened("a", 3), line)


def test_a_mapped_file_that_was_named_is_noise(tmp_path: Path) -> None:
    line = f"1  mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, {at(3, 'a-shm')}, 0) = 0x7f00"
    found = read(opened("a-shm", 3), line, *FOLDER, mapped=("-shm",))
    assert len(states(found, tmp_path, number=20)) > 10


# --- the disk ---


def test_what_was_synced_is_in_every_state(tmp_path: Path) -> None:
    found = read(opened("a", 3), wrote("a", 3, "kept", 0), synced("a", 3), *FOLDER)
    assert states(found, tmp_path) == {(("a", b"kept"),)}


def test_what_was_only_written_may_be_lost_or_there(tmp_path: Path) -> None:
    found = read(opened("a", 3), *FOLDER, wrote("a", 3, "x", 0), wrote("a", 3, "y", 1))
    contents = {state[0][1] for state in states(found, tmp_path)}
    assert contents == {b"", b"x", b"\0y", b"xy", b"\0", b"\0\0", b"x\0"}


def test_a_files_sync_does_not_keep_its_name(tmp_path: Path) -> None:
    found = read(opened("a", 3), wrote("a", 3, "kept", 0), synced("a", 3))
    assert states(found, tmp_path) == {(), (("a", b"kept"),)}


def test_a_sync_covers_only_what_was_done_when_it_began(tmp_path: Path) -> None:
    lines = [
        opened("a", 3),
        *FOLDER,
        "1  clone(child_stack=NULL, flags=SIGCHLD) = 2",
        f"2  pwrite64({at(3, 'a')}, {h('late')}, 4, 0 <unfinished ...>",
        f"1  fsync({at(3, 'a')} <unfinished ...>",
        "2  <... pwrite64 resumed>) = 4",
        "1  <... fsync resumed>) = 0",
    ]
    assert (("a", b""),) in states(read(*lines), tmp_path / "overlapping")
    lines[5], lines[6] = lines[6], lines[5]
    assert states(read(*lines), tmp_path / "after") == {(("a", b"late"),)}


def test_a_sync_counts_once_it_returned(tmp_path: Path) -> None:
    found = read(
        opened("a", 3), *FOLDER, wrote("a", 3, "x", 0), f"1  fsync({at(3, 'a')} <unfinished ...>"
    )
    assert (("a", b""),) in states(found, tmp_path)


def test_what_a_failed_sync_did_not_write_no_later_one_does(tmp_path: Path) -> None:
    failed = f"1  fdatasync({at(3, 'a')}) = -1 EIO (Input/output error)"
    found = read(
        opened("a", 3),
        *FOLDER,
        wrote("a", 3, "x", 0),
        failed,
        wrote("a", 3, "y", 1),
        synced("a", 3),
    )
    assert states(found, tmp_path / "behind") == {(("a", b"\0y"),)}
    anew = read(
        opened("a", 3),
        *FOLDER,
        wrote("a", 3, "x", 0),
        failed,
        wrote("a", 3, "x", 0),
        synced("a", 3),
    )
    assert states(anew, tmp_path / "anew") == {(("a", b"x"),)}


def test_a_write_is_torn_at_its_sectors(tmp_path: Path) -> None:
    lines = [
        opened("a", 3),
        wrote("a", 3, "o" * 1024, 0),
        synced("a", 3),
        *FOLDER,
        wrote("a", 3, "n" * 600, 200),
    ]
    contents = {state[0][1] for state in states(read(*lines), tmp_path)}
    old, first, second = b"o" * 1024, b"n" * 312, b"n" * 288
    assert contents == {
        old,
        old[:200] + first + old[512:],
        old[:512] + second + old[800:],
        old[:200] + first + second + old[800:],
    }


def test_names_are_kept_from_the_beginning_on(tmp_path: Path) -> None:
    found = read(
        opened("a", 3),
        opened("b", 4),
        f"1  rename({h('/r/a')}, {h('/r/c')}) = 0",
        f"1  unlink({h('/r/b')}) = 0",
    )
    names = {tuple(name for name, _ in state) for state in states(found, tmp_path)}
    assert names == {(), ("a",), ("a", "b"), ("b", "c"), ("c",)}


def test_a_folder_without_a_lasting_name_takes_its_files_with_it(tmp_path: Path) -> None:
    found = read(
        f"1  mkdir({h('/r/d')}, 0700) = 0",
        opened("d/a", 3),
        synced("d/a", 3),
        opened("d", 4, flags="O_RDONLY|O_DIRECTORY"),
        synced("d", 4),
    )
    assert states(found, tmp_path) == {(), (("d/a", b""),)}


# --- a program of another kind ---


@pytest.fixture(scope="module")
def _tracer() -> None:
    if reason := why_not():
        skip_or_fail(reason)


def renames(folder: Path, left_out: str) -> Report:
    try:
        recording = record(
            [sys.executable, "-m", "tests.hazards.powerloss_renames", left_out], folder=folder
        )
    except subprocess.CalledProcessError as error:
        pytest.fail(f"the writer failed:\n{error.stderr}")
    return examine(recording.trace(), powerloss_renames.check, states=400, seed=7, jobs=1)


@pytest.mark.usefixtures("_tracer")
def test_files_that_are_written_beside_synced_and_renamed_survive(tmp_path: Path) -> None:
    report = renames(tmp_path, "nothing")
    assert not report.failures, report.summary()
    assert report.lossy
    assert report.unnamed


@pytest.mark.usefixtures("_tracer")
@pytest.mark.parametrize(
    ("left_out", "wrong"), [("file", "torn"), ("folder", "is back at"), ("parents", "is back at 0")]
)
def test_a_step_left_out_is_found(left_out: str, wrong: str, tmp_path: Path) -> None:
    report = renames(tmp_path, left_out)
    assert any(wrong in complaint for failure in report.failures for complaint in failure.wrong), (
        report.summary()
    )
