"""A job registry by the rules of the system whose folders are shared: plain Python, nothing of
Holdfast.

python source_registry.py pick-all FOLDER LABEL      picks until nothing is pending, and prints each id
python source_registry.py pick-slowly FOLDER LABEL   prints `read` when it has decided; a line on stdin lets it write
python source_registry.py register FOLDER LABEL N    registers N jobs, and prints each id
python source_registry.py hold FOLDER                takes the lock, prints `held`, and keeps it until stdin ends
"""

import fcntl
import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def registry_lock(folder: str) -> Iterator[None]:
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, ".lock"), "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read(folder: str, job_id: str) -> dict[str, Any]:
    with open(os.path.join(folder, f"{job_id}.json")) as file:
        found: dict[str, Any] = json.load(file)
    return found


def write(folder: str, record: dict[str, Any]) -> None:
    record["updated_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    staged = os.path.join(folder, f".{record['job_id']}.{secrets.token_hex(4)}.tmp")
    with open(staged, "w") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, os.path.join(folder, f"{record['job_id']}.json"))


def oldest_pending(folder: str, label: str) -> dict[str, Any] | None:
    records = [
        read(folder, name.removesuffix(".json"))
        for name in os.listdir(folder)
        if name.endswith(".json")
    ]
    waiting = [
        record
        for record in records
        if record["status"] == "pending" and record["agent_session"] == label
    ]
    return min(waiting, key=lambda record: (record["created_at"], record["job_id"]), default=None)


def pick(folder: str, label: str, *, decided: Any = lambda: None) -> str | None:
    with registry_lock(folder):
        record = oldest_pending(folder, label)
        decided()
        if record is None:
            return None
        record["status"] = "running"
        record["picked_by"] = os.getpid()
        write(folder, record)
        job_id: str = record["job_id"]
        return job_id


def register(folder: str, label: str) -> str:
    job_id = secrets.token_urlsafe(6)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with registry_lock(folder):
        write(
            folder,
            {
                "schema_version": 1,
                "job_id": job_id,
                "status": "pending",
                "created_at": now,
                "prompt": "do it",
                "agent": "claude-code",
                "agent_session": label,
                "broker": {
                    "host": "127.0.0.1",
                    "port": 9,
                    "tls": False,
                    "username": None,
                    "password": None,
                },
                "topic_prefix": f"python/mqtt/jobs/{job_id}",
                "timeout_sec": 600,
                "idle_timeout_sec": 120,
                "expected_artifacts": [],
                "last_seq": 0,
                "auth_token": None,
            },
        )
    return job_id


def say(word: object) -> None:
    print(word, flush=True)


def wait_for_a_line() -> None:
    say("read")
    sys.stdin.readline()


def main(verb: str, folder: str, label: str = "", count: str = "1") -> None:
    if verb == "register":
        for _ in range(int(count)):
            say(register(folder, label))
    elif verb == "pick-all":
        while (job_id := pick(folder, label)) is not None:
            say(job_id)
    elif verb == "pick-slowly":
        say(pick(folder, label, decided=wait_for_a_line))
    elif verb == "hold":
        with registry_lock(folder):
            say("held")
            sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
