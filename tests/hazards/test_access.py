"""Who may use new files: only their owner whatever the umask, or a configured group, with a second
user.
"""

import errno
import grp
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import RegistryManager
from holdfast.domains.gateway.adapter import CommandSpec
from holdfast.kernel.errors import InvalidValue, StoreUnavailable
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import Holdfast, connect, connected
from holdfast.runtime.gateway_host import open_gateway
from holdfast.system import access
from tests.harness.errors import raises


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "deep" / "home"))


STORES = ["sqlite", "files"]
needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="needs root: becomes another user, and gives files to a group"
)
GROUP = grp.getgrgid(1).gr_name
"""Any group that is not this process's own."""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def url_in(folder: Path, kind: str) -> str:
    return f"{kind}:{folder}/deep/state/{'store.sqlite' if kind == 'sqlite' else 'store'}"


def use_all_of(hf: Holdfast) -> None:
    """Have everything make its files and folders, and leave them there."""
    hf.jobs.register_job("sort it", agent="agent", agent_session="s")
    assert hf.job_log is not None
    assert hf.job_log.catch_up(hf.log, hf.jobs.peek) is None
    hf.agents.publish("gpu", backend="command", tool="cat", manifest_path="/m")
    hf.workflows.register("w", recipe="r", preemptible=True)
    hf.workflows.request_preempt("w")
    with hf.workflows.swap("r"):
        pass
    hf.locks.acquire("router-1", by="run-1")
    with hf.store.listen(["a", "b"]):
        open_gateway(
            "gpu", CommandSpec(command=("cat",)), hf.settings, on_lost=lambda: None
        ).close()


def modes(root: Path) -> dict[str, tuple[int, int]]:
    """The mode and group of all that lies under a folder, itself included, but for what is just
    being made.
    """
    found = [root, *(path for path in root.rglob("*") if path.suffix != ".new")]
    assert len(found) > 15, "much is made"
    return {
        str(path.relative_to(root)): (stat.S_IMODE(path.lstat().st_mode), path.lstat().st_gid)
        for path in found
    }


def is_folder(root: Path, name: str) -> bool:
    return (root / name).is_dir()


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o177])
@pytest.mark.parametrize("kind", STORES)
def test_all_is_its_owners_alone_whatever_the_umask(tmp_path: Path, kind: str, mask: int) -> None:
    with umask(mask), connect(url_in(tmp_path, kind)) as hf:
        use_all_of(hf)
        root = tmp_path / "deep"
        wrong = {
            name: oct(mode)
            for name, (mode, _) in modes(root).items()
            if mode != (0o700 if is_folder(root, name) else 0o600)
        }
    assert wrong == {}


@needs_root
@pytest.mark.parametrize("kind", STORES)
def test_with_a_group_all_is_the_groups_but_what_drives_an_agent(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP", GROUP)
    with umask(0o077), connect(url_in(tmp_path, kind)) as hf:
        use_all_of(hf)
        root = tmp_path / "deep"
        gid = grp.getgrnam(GROUP).gr_gid
        found = modes(root)
        privates = {name for name in found if "gateways" in name and "/default/gpu" in name}
        assert privates and privates < found.keys()
        for name, (mode, group) in found.items():
            if name in privates:
                assert mode == (0o700 if is_folder(root, name) else 0o600), name
            else:
                assert (oct(mode), group) == (
                    oct(0o2775 if is_folder(root, name) else 0o660),
                    gid,
                ), name


@needs_root
@pytest.mark.parametrize("kind", STORES)
def test_the_transaction_log_of_a_groups_registry_is_the_groups(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP", GROUP)
    monkeypatch.setenv("HOLDFAST_STORE", url_in(tmp_path, kind))
    log = tmp_path / "log" / "registry.log"
    with umask(0o077), RegistryManager({"transaction_log_path": str(log)}) as manager:
        manager.register_host("h1", "10.0.0.1", "router-1", "02:00:00:00:00:01")
    gid = grp.getgrnam(GROUP).gr_gid
    for path, mode in (
        (log.parent, 0o2775),
        (log, 0o660),
        (log.with_name("registry.log.cursor"), 0o660),
    ):
        found = path.stat()
        assert (oct(stat.S_IMODE(found.st_mode)), found.st_gid) == (oct(mode), gid), path


_OTHER = """
import os, sys
from holdfast.runtime.connection import connect

def work(url, asked):
    with connect(url) as hf, hf.store.listen(["x"]):
        grant = hf.locks.acquire("router-2", by="run-2")
        job = hf.jobs.register_job("theirs", agent="agent", agent_session="t")
        grant.release()
        return hf.jobs.peek(asked or job.job_id).prompt, job.job_id, hf.job_log.catch_up(hf.log, hf.jobs.peek)

url, asked, gid, elsewhere = sys.argv[1:]
# The first time as who may read this program: what is loaded then is loaded.
work(elsewhere, None)
os.setgroups([int(gid)]); os.setgid(65534); os.setuid(65534); os.umask(0o077)
print(*work(url, asked))
"""


@needs_root
@pytest.mark.parametrize("kind", STORES)
def test_another_user_of_the_group_finds_and_uses_the_same_store(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to(tempfile.gettempdir()):
            os.chmod(folder, folder.stat().st_mode | 0o011)
    url, gid = url_in(tmp_path, kind), grp.getgrnam(GROUP).gr_gid
    monkeypatch.setenv("HOLDFAST_GROUP", GROUP)
    with umask(0o077), connect(url) as hf:
        job = hf.jobs.register_job("ours", agent="agent", agent_session="s")
        monkeypatch.delenv("HOLDFAST_GROUP")
        words = [url, job.job_id, str(gid), url_in(tmp_path / "elsewhere", kind)]
        done = subprocess.run(
            [sys.executable, "-c", _OTHER, *words],
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        prompt, theirs, trouble = done.stdout.split()
        assert (prompt, trouble) == ("ours", "None")
        assert hf.jobs.peek(theirs) is not None
        hf.locks.acquire("router-2", by="run-1").release()
        assert {group for _, group in modes(tmp_path / "deep").values()} == {gid}


@needs_root
def test_a_folder_in_which_a_group_cannot_work_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP", GROUP)
    with pytest.raises(StoreUnavailable, match="chmod 2775"):
        connect(f"sqlite:{tmp_path}/store.sqlite")
    assert list(tmp_path.iterdir()) == []


def refused(*_: object) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_store_that_is_there_stays_as_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(f"sqlite:{tmp_path}/store.sqlite").close()
    monkeypatch.setenv("HOLDFAST_GROUP", GROUP)
    # The system refuses a user outside the group.
    for name in ("chown", "fchown"):
        monkeypatch.setattr(os, name, refused)
    with connect(f"sqlite:{tmp_path}/store.sqlite") as hf:
        hf.locks.acquire("a", by="run-1").release()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")} <= {0o600, 0o700}


def test_a_missing_group_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_GROUP", "no-such-group-here")
    with raises(InvalidValue, field="group"):
        connected(load_settings(store=f"sqlite:{tmp_path}/store.sqlite"))


def test_a_folder_that_another_member_makes_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[int] = []
    fchmod = os.fchmod

    def late(fd: int, mode: int) -> None:
        (tmp_path / "topic").mkdir()
        there.append((tmp_path / "topic").stat().st_ino)
        fchmod(fd, mode)

    monkeypatch.setattr(os, "fchmod", late)
    above = os.open(tmp_path, os.O_RDONLY)
    access.make_folder_in(above, "topic", access.Access(0o2770, 0o660, os.getgid()))
    os.close(above)
    # Another member may have opened it already, and would go on in a folder that has no name any
    # more.
    assert [(tmp_path / "topic").stat().st_ino] == there
    assert os.listdir(tmp_path) == ["topic"]
