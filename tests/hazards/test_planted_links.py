"""A member of the group puts links, FIFOs and folders in the place of every file that a shared
store has.

The names come from a store that was really used, so that a file which is new tomorrow is tried too.
Root, who shares the store, goes on working in it: no file of root's elsewhere may be changed, shown
or waited for.
"""

import contextlib
import grp
import json
import os
import shutil
import signal
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import RegistryManager
from holdfast.domains.gateway.adapter import CommandSpec
from holdfast.kernel.errors import HoldfastError, StoreUnavailable
from holdfast.runtime.connection import Holdfast, connect
from holdfast.runtime.gateway_host import open_gateway
from holdfast.system.access import make_folder, open_file
from holdfast.system.folder_walk import open_folder, resolve
from tests.harness.children import exit_status_of
from tests.harness.timeouts import PATIENCE_S

STORES = ["sqlite", "files"]
needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="needs root: becomes another user, and gives files to a group"
)
GROUP = grp.getgrgid(1)
MEMBER = 65534
SECRET = b'{"status": "the-secret-of-root", "cursor": "the-secret-of-root"}\n'
LONG_AGO_NS = 10**18


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that a group shares, below one that everybody may enter."""
    monkeypatch.setenv("HOLDFAST_GROUP", GROUP.gr_name)
    monkeypatch.setenv("HOLDFAST_STORE", "")
    # In memory, where there is such a place: some hundred stores are made.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setenv("XDG_STATE_HOME", f"{folder}/home")
        yield Path(folder)


def url_in(lab: Path, kind: str) -> str:
    return f"{kind}:{lab}/shared/{'store.sqlite' if kind == 'sqlite' else 'store'}"


def work(hf: Holdfast) -> Iterator[Callable[[], object]]:
    """Everything that creates, writes and reads files. Each part runs even if another was refused."""
    log = hf.job_log
    assert log is not None
    jobs = [job.job_id for job in hf.jobs.list_jobs()]

    def swap() -> None:
        with contextlib.suppress(HoldfastError):
            hf.workflows.register("w", recipe="r", preemptible=True)
        hf.workflows.request_preempt("w")
        with hf.workflows.swap("r"):
            pass

    def listen() -> None:
        with hf.store.listen(["a", "b"]):
            hf.store.transact(lambda tx: tx.notify("a"), scope=[])

    def gateway() -> None:
        open_gateway(
            "gpu", CommandSpec(command=("cat",)), hf.settings, on_lost=lambda: None
        ).close()

    def network() -> None:
        os.environ["HOLDFAST_STORE"] = hf.settings.store or ""
        with RegistryManager(
            {"transaction_log_path": f"{_store_folder(hf)}/registry.log"}
        ) as manager:
            one, two, three = os.urandom(3)
            manager.register_host(
                f"h{one}-{two}-{three}",
                f"10.{one}.{two}.{three}",
                "router-1",
                f"02:00:00:{one:02x}:{two:02x}:{three:02x}",
            )

    yield lambda: hf.jobs.register_job("sort it", agent="agent", agent_session="s")
    # An existing job: its log continues.
    yield lambda: hf.jobs.pick_pending("s")
    yield lambda: print(log.catch_up(hf.log, hf.jobs.peek) or "")
    yield from (
        lambda job=job: print(log.status(job), log.meta(job), list(log.events(job))) for job in jobs
    )
    yield lambda: hf.agents.publish(
        f"a-{os.urandom(4).hex()}", backend="command", tool="cat", manifest_path="/m"
    )
    yield swap
    yield lambda: hf.locks.acquire("router-1", by="run-1").release()
    yield listen
    yield gateway
    yield network
    yield lambda: log.rebuild(hf.log, hf.jobs.peek)
    yield lambda: print(len(hf.jobs.list_jobs()))


def _store_folder(hf: Holdfast) -> Path:
    return Path((hf.settings.store or "").partition(":")[2]).parent


def use(url: str) -> list[HoldfastError]:
    """Work in the store; what was refused."""
    refused = []
    try:
        with connect(url) as hf:
            parts = work(hf)
            while True:
                try:
                    part = next(parts, None)
                    if part is None:
                        break
                    part()
                except HoldfastError as error:
                    refused.append(error)
    except HoldfastError as error:
        refused.append(error)
    return refused


def as_member(*steps: Callable[[], object]) -> None:
    def become() -> None:
        os.setgroups([GROUP.gr_gid])
        os.setgid(MEMBER)
        os.setuid(MEMBER)
        for step in steps:
            step()

    assert exit_status_of(become) == 0


class Canary:
    """A file and a folder of root's, which nobody else can reach."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        (folder / "inside").mkdir(mode=0o700)
        # Everything behind a linked folder exists.
        for name, content in (
            ("secret", SECRET),
            ("empty", b""),
            *((f"inside/{name}", SECRET) for name in names),
        ):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o600)
        for path in (folder, *folder.rglob("*")):
            os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
        self.before = self.seen()

    def seen(self) -> dict[str, tuple[Any, ...]]:
        """All that could be changed. The number of names is the attacker's own doing."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            there = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            name = str(path.relative_to(self.folder))
            found[name] = (content, there.st_mode, there.st_uid, there.st_gid, there.st_mtime_ns)
        return found


Plant = Callable[[Path, Canary], None]


def symlink_to(name: str) -> Plant:
    def plant(path: Path, canary: Canary) -> None:
        as_member(partial(remove, path), lambda: path.symlink_to(canary.folder / name))

    return plant


def hard_link(path: Path, canary: Canary) -> None:
    # By root, as the member could where fs.protected_hardlinks is off.
    as_member(lambda: remove(path))
    if not path.exists():
        os.link(canary.folder / ("inside" if path.is_dir() else "secret"), path)


def fifo(path: Path, _: Canary) -> None:
    as_member(partial(remove, path), lambda: os.mkfifo(path, 0o660), lambda: os.chmod(path, 0o666))


def folder(path: Path, _: Canary) -> None:
    as_member(partial(remove, path), path.mkdir)


def remove(path: Path) -> None:
    """Take a name away as a member can: what is not his own, he moves."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        os.rename(path, path.with_name(f"was-{path.name}"))


FILES: dict[str, Plant] = {
    "symlink": symlink_to("secret"),
    "symlink to an empty file": symlink_to("empty"),
    "dangling symlink": symlink_to("nothing"),
    "hard link": hard_link,
    "fifo": fifo,
    "folder": folder,
}


def used_store(lab: Path, kind: str) -> tuple[str, list[Path], list[Path]]:
    """A store that root has used, and the files and folders that it has."""
    url = url_in(lab, kind)
    assert use(url) == [] and use(url) == []
    shared = lab / "shared"
    # What is in a gateway's own folder no member can reach. What only a listener has ends with it.
    found = [
        path for path in shared.rglob("*") if not ("gateways" in str(path) and "/gpu/" in str(path))
    ]
    files = [path for path in found if stat.S_ISREG(path.lstat().st_mode)]
    # SQLite's own files go with the last connection, and anybody may put something there meanwhile.
    files += [
        path.with_name(path.name + end)
        for path in files
        if path.suffix == ".sqlite"
        for end in ("-wal", "-shm", "-journal")
    ]
    folders = [path for path in found if path.is_dir()]
    return url, files, folders


def tried(
    lab: Path, kind: str, plant: Plant, path: Path, canary_of: Callable[[Path], list[str]]
) -> list[str]:
    """Plant one thing in a fresh copy of the store, and let root work there; what went wrong."""
    shared, kept = lab / "shared", lab / "kept"
    shutil.rmtree(shared)
    subprocess_copy(kept, shared)
    canary = Canary(lab / "root", canary_of(path))
    plant(path, canary)
    out = lab / "out"

    def run() -> None:
        signal.alarm(int(PATIENCE_S))
        with (
            open(out, "w") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            try:
                print(json.dumps([error.message for error in use(url_in(lab, kind))]))
            except BaseException:
                traceback.print_exc()
                raise

    status = exit_status_of(run)
    said = out.read_text(errors="replace")
    wrong = []
    if status != 0:
        wrong.append(f"ended with {status}: {said[-600:]}")
    elif (messages := json.loads(said.splitlines()[-1])) and not any(
        path.stem in message for message in messages
    ):
        wrong.append(f"refused without naming it: {messages}")
    after = canary.seen()
    changed = [
        name for name in {*after, *canary.before} if after.get(name) != canary.before.get(name)
    ]
    if changed:
        wrong.append(f"changed {changed}: {[after.get(name) for name in changed][:3]}")
    if "the-secret-of-root" in said:
        wrong.append("shown to every reader")
    shutil.rmtree(lab / "root")
    return wrong


def subprocess_copy(source: Path, target: Path) -> None:
    """Copy a tree with owners, groups and modes."""
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_one)
    for path in (source, *source.rglob("*")):
        found, copy = path.lstat(), target / path.relative_to(source)
        os.chown(copy, found.st_uid, found.st_gid)
        os.chmod(copy, stat.S_IMODE(found.st_mode))


def _copy_one(source: str, target: str) -> None:
    shutil.copyfile(source, target)


_LONG = {"dangling symlink", "symlink to an empty file", "folder"}


@needs_root
@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.exhaustive] * (what in _LONG)) for what in FILES]
)
@pytest.mark.parametrize("kind", STORES)
def test_root_does_not_follow_what_a_member_puts_in_place_of_a_file(
    lab: Path, kind: str, what: str
) -> None:
    _, files, _ = used_store(lab, kind)
    subprocess_copy(lab / "shared", lab / "kept")
    assert len(files) > 10, files
    wrong = {
        str(path): found
        for path in files
        if (found := tried(lab, kind, FILES[what], path, lambda _: []))
    }
    assert wrong == {}


@needs_root
@pytest.mark.parametrize("kind", STORES)
def test_root_does_not_follow_a_link_in_place_of_a_folder(lab: Path, kind: str) -> None:
    _, files, folders = used_store(lab, kind)
    subprocess_copy(lab / "shared", lab / "kept")

    def names_in(folder: Path) -> list[str]:
        return [str(path.relative_to(folder)) for path in files if path.is_relative_to(folder)]

    assert len(folders) > 3, folders
    wrong = {
        str(path): found
        for path in folders
        if (found := tried(lab, kind, symlink_to("inside"), path, names_in))
    }
    assert wrong == {}


@needs_root
def test_a_link_in_the_place_of_the_wake_folder_is_named_with_its_owner(lab: Path) -> None:
    """The advice was to choose another place for the store."""
    with connect(url_in(lab, "sqlite")) as hf:
        with hf.store.listen(["a"]):
            pass
        wake = lab / "shared" / "store.sqlite-wake"
        as_member(lambda: shutil.rmtree(wake), lambda: wake.symlink_to("elsewhere"))
        with pytest.raises(StoreUnavailable) as refused:
            hf.store.listen(["b"]).__enter__()
        assert str(MEMBER) in refused.value.fields["why"]
        as_member(wake.unlink)


@needs_root
def test_a_planted_topic_folder_makes_no_notifier_write_into_its_files(lab: Path) -> None:
    """Every file in the folder got a `!` at its beginning."""
    url = url_in(lab, "sqlite")
    with connect(url) as hf:
        with hf.store.listen(["a"]):
            (topic,) = (lab / "shared").glob("store.sqlite-wake/t-*")
            canary = Canary(lab / "root", ["1-0123456789ab"])
            as_member(partial(remove, topic), lambda: topic.symlink_to(canary.folder / "inside"))
            hf.store.transact(lambda tx: tx.notify("a"), scope=[])
            as_member(partial(remove, topic), topic.mkdir)
            os.link(canary.folder / "secret", topic / "1-0123456789ab")
            hf.store.transact(lambda tx: tx.notify("a"), scope=[])
        assert canary.seen() == canary.before
        as_member(lambda: shutil.rmtree(topic))


def test_ones_own_links_are_followed_and_anothers_are_not(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.close(open_folder(tmp_path / "link"))
    assert resolve(tmp_path / "link" / "store") == str(tmp_path.resolve() / "real" / "store")
    make_folder(tmp_path / "link" / "a" / "b")
    assert (tmp_path / "real" / "a" / "b").is_dir()
    if os.geteuid() == 0:
        os.chmod(tmp_path, 0o777)
        os.lchown(tmp_path / "link", MEMBER, MEMBER)
        for refused in (
            lambda: open_folder(tmp_path / "link"),
            lambda: resolve(tmp_path / "link" / "store"),
        ):
            with pytest.raises(StoreUnavailable) as error:
                refused()
            assert error.value.fields["path"] == str(tmp_path.resolve() / "link")


def test_a_private_file_may_have_a_second_name_where_nobody_else_can_write(tmp_path: Path) -> None:
    """Backups by hard links do this."""
    os.close(open_file(tmp_path / "gate", os.O_RDWR))
    os.link(tmp_path / "gate", tmp_path / "backup")
    os.close(open_file(tmp_path / "gate", os.O_RDWR))
    tmp_path.chmod(0o777)
    with pytest.raises(StoreUnavailable, match="second name"):
        open_file(tmp_path / "gate", os.O_RDWR)
