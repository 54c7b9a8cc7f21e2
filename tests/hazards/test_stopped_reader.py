"""A reader that is stopped inside a read keeps SQLite's log from being begun anew. Its growth has a
bound, and an end.
"""

from pathlib import Path

import pytest

import holdfast
from holdfast.kernel.errors import StoreUnavailable
from holdfast.runtime.doctor import Severity, examine, store
from holdfast.stores.sqlite import database, transaction, wal
from holdfast.stores.sqlite import store as sqlite_store
from holdfast.stores.sqlite.wal import log_size
from tests.harness.stopped_processes import StoppedInside

BOUND = 2 << 20


def test_the_log_stops_growing_and_shrinks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sqlite_store, transaction, wal, store):
        monkeypatch.setattr(module, "LOG_BYTES_MAX", BOUND)
    for module in (database, store):
        monkeypatch.setattr(module, "LOG_BYTES_KEPT", BOUND // 2)
    monkeypatch.setattr(database, "CHECKPOINT_FRAMES", 64)
    path = tmp_path / "store.sqlite"
    url = f"sqlite:{path}"
    accepted: list[str] = []
    with holdfast.connect(url) as hf:

        def register() -> None:
            accepted.append(hf.jobs.register_job("x" * 20_000, agent="a", agent_session="a").job_id)

        def register_until(size: int) -> None:
            while log_size(path) < size:
                register()

        for _ in range(3 * BOUND // 20_000):
            register()
        assert log_size(path) < BOUND, "without a reader it never gets there"
        with StoppedInside(url, "jobs", call="read") as reader:
            with pytest.raises(StoreUnavailable) as refused:
                register_until(4 * BOUND)
            assert (
                refused.value.fields["outcome"] == "none"
                and refused.value.fields["reader_pids"][0] == reader.pid
            )
            assert f"kill -CONT {reader.pid}" in refused.value.message
            longest = log_size(path)
            assert BOUND < longest < 2 * BOUND
            with pytest.raises(StoreUnavailable):
                register()
            assert log_size(path) == longest
            [found] = [one for one in examine(url) if one.check == "log"]
            assert (
                found.verdict is Severity.FAIL
                and str(reader.pid) in found.says
                and "kill -CONT" in found.fix
            )
            # A reader is not refused.
            assert len(hf.jobs.list_jobs(limit=10_000)) == len(accepted)
            reader.go_on()
        for _ in range(200):
            register()
        assert log_size(path) < BOUND
        assert {job.job_id for job in hf.jobs.list_jobs(limit=10_000)} == set(accepted)
    with holdfast.connect(url) as again:
        assert {job.job_id for job in again.jobs.list_jobs(limit=10_000)} == set(accepted)
