"""A job as a file of a registry folder: records of other programs are read as they are, and keep
what they had.
"""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domains.jobs.records import JOBS, JobStatus
from holdfast.domains.jobs.wire import read, write
from holdfast.kernel.errors import Corrupt
from holdfast.kernel.layout import FilePerRecord
from holdfast.runtime.connection import connect

FOREIGN: dict[str, Any] = {
    "schema_version": 1,
    "job_id": "abc12345",
    "status": "pending",
    "created_at": "2026-06-19T09:30:00Z",
    "updated_at": "2026-06-19T09:32:00Z",
    "prompt": "정렬 문제 10개를 만들어 sort_problems.md로 저장",
    "agent": "claude-code",
    "agent_session": "tmux:claude",
    "broker": {
        "host": "broker.example",
        "port": 1883,
        "tls": False,
        "username": None,
        "password": None,
    },
    "topic_prefix": "python/mqtt/jobs/abc12345",
    "timeout_sec": 600,
    "idle_timeout_sec": 120,
    "expected_artifacts": ["sort_problems.md"],
    "last_seq": 0,
    "auth_token": None,
}


def test_a_foreign_record_is_read_as_it_is() -> None:
    job = read("abc12345", FOREIGN)
    assert (job.status, job.timeout_sec, job.expected_artifacts) == (
        JobStatus.PENDING,
        600,
        ("sort_problems.md",),
    )
    assert job.events_topic == "python/mqtt/jobs/abc12345/events"
    assert job.broker.host == "broker.example"
    assert JOBS.decode("abc12345", JOBS.encode(job)) == job


def test_it_is_written_back_with_every_field_it_had() -> None:
    document = {
        **FOREIGN,
        "theirs": {"a": [1]},
        "broker": {**FOREIGN["broker"], "keepalive": 30, "password": "p"},
    }
    written = json.loads(json.dumps(write(read("abc12345", document))))
    for name, value in document.items():
        assert written[name] == value, name
    again = read("abc12345", written)
    assert write(again) == written
    assert again.extra == {"theirs": {"a": [1]}}
    assert again.broker.extra == {"keepalive": 30}


def test_foreign_records_come_in_the_order_they_were_made_and_before_ours() -> None:
    earlier = read("abc12345", {**FOREIGN, "created_at": "2026-06-19T09:29:59Z"})
    later = read("abc12345", FOREIGN)
    old = read("abc12345", {**FOREIGN, "created_at": "2019-01-01T00:00:00Z"})
    assert old.arrival < earlier.arrival < later.arrival
    JOBS.index_keys(old)


@pytest.mark.parametrize(
    "wrong",
    [
        {"job_id": "other"},
        {"schema_version": "one"},
        {"status": "finished"},
        {"created_at": "2026-06-19T09:30:00"},
        {"created_at": None},
        {"prompt": 5},
        {"broker": {"port": "x"}},
        {"expected_artifacts": "x"},
    ],
    ids=str,
)
def test_what_is_no_job_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        read("abc12345", {**FOREIGN, **wrong})


def test_the_space_declares_the_layout() -> None:
    layout = JOBS.layout
    assert isinstance(layout, FilePerRecord)
    assert (layout.folder, layout.name) == ("jobs", "{key}.json")
    assert (
        layout.wire.read(
            "abc12345", layout.wire.write(layout.wire.read("abc12345", FOREIGN))
        ).job_id
        == "abc12345"
    )


def test_a_damaged_file_is_reported_once(tmp_path: Path) -> None:
    """It stands in no order, and so was met in each of them."""
    (tmp_path / "jobs").mkdir()
    for job_id, more in (("sound", {}), ("odd", {"priority": 10**30})):
        (tmp_path / "jobs" / f"{job_id}.json").write_text(
            json.dumps({**FOREIGN, "job_id": job_id, **more})
        )
    damaged: list[Corrupt] = []
    with closing(connect(f"files:{tmp_path}")) as hf:
        assert [job.job_id for job in hf.jobs.list_jobs(damaged=damaged)] == ["sound"]
    assert [error.fields["key"] for error in damaged] == ["odd"]
