"""What a registry of jobs should do, in plain Python: a list of dicts and a few loops. Knows nothing
of the code under test.
"""

from typing import Any

ENDED = ("completed", "error", "cancelled")
STEPS = {
    "pending": ("running", "cancelled"),
    "running": ("completed", "error", "cancelled", "pending"),
}
MOVES = {"started": "running", "completed": "completed", "error": "error", "cancelled": "cancelled"}


class Refused(Exception):
    """The registry should say no, with this code."""


class JobOracle:
    """Jobs in the order they came. A job that is running has a `claim`: a number that no other
    attempt has.
    """

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.claims = 0
        self.dead: set[int] = set()
        self.now = 0.0

    def register(
        self, job_id: str, label: str, priority: int, attempts: int, timeout: float, idle: float
    ) -> None:
        self.jobs.append(
            {
                "id": job_id,
                "label": label,
                "priority": priority,
                "max": attempts,
                "timeout": timeout,
                "idle": idle,
                "status": "pending",
                "attempt": 0,
                "deaths": 0,
                "claim": None,
                "worker": None,
                "seq": 0,
                "code": None,
                "begun": 0.0,
                "sign": 0.0,
                "waits": False,
            }
        )

    def job(self, job_id: str) -> dict[str, Any]:
        return next(job for job in self.jobs if job["id"] == job_id)

    def reap(self) -> list[str]:
        reaped = []
        for job in self.jobs:
            if job["status"] != "running":
                continue
            if job["worker"] in self.dead:
                job["deaths"] += 1
                if job["deaths"] < job["max"]:
                    self.become(job, "pending")
                else:
                    self.become(job, "error", "worker_died")
            elif self.now > job["begun"] + job["timeout"] or (
                not job["waits"] and self.now > job["sign"] + job["idle"]
            ):
                self.become(job, "error", "timed_out")
            else:
                continue
            reaped.append(job["id"])
        return reaped

    def become(self, job: dict[str, Any], status: str, code: str | None = None) -> None:
        job.update(status=status, claim=None, worker=None, waits=False, code=code)

    def begin(self, job: dict[str, Any], worker: int | None) -> None:
        self.claims += 1
        job.update(
            status="running",
            claim=self.claims,
            worker=worker,
            attempt=job["attempt"] + 1,
            code=None,
        )
        job.update(begun=self.now, sign=self.now, waits=False)

    def pick(self, label: str, worker: int | None) -> str | None:
        waiting = [job for job in self.jobs if job["status"] == "pending" and job["label"] == label]
        if not waiting:
            return None
        chosen = min(waiting, key=lambda job: (-job["priority"], self.jobs.index(job)))
        self.begin(chosen, worker)
        return str(chosen["id"])

    def check(self, job: dict[str, Any], claim: int | None) -> None:
        if claim is not None and claim != job["claim"]:
            raise Refused("fenced")

    def move(self, job_id: str, status: str, claim: int | None) -> None:
        job = self.job(job_id)
        self.check(job, claim)
        if status not in STEPS.get(job["status"], ()):
            raise Refused("impossible_transition")
        if status == "running":
            self.begin(job, None)
        else:
            self.become(job, status)

    def retry(self, job_id: str) -> None:
        job = self.job(job_id)
        if job["status"] not in ("error", "cancelled"):
            raise Refused("impossible_transition")
        job.update(status="pending", deaths=0, code=None)

    def finish_and_pick(
        self, job_id: str, status: str, claim: int, worker: int | None
    ) -> str | None:
        job = self.job(job_id)
        self.move(job_id, status, claim)
        return self.pick(job["label"], worker)

    def heartbeat(self, job_id: str, claim: int) -> None:
        job = self.job(job_id)
        self.check(job, claim)
        job["sign"] = self.now

    def publish(self, job_id: str, event: str, claim: int | None) -> int:
        job = self.job(job_id)
        self.check(job, claim)
        target = MOVES.get(event)
        if target is None or (target == "running" and job["status"] == "running"):
            if job["status"] in ENDED:
                raise Refused("impossible_transition")
            job["waits"] = event == "permission_required"
        else:
            self.move(job_id, target, None)
        job["sign"] = self.now
        job["seq"] += 1
        return int(job["seq"])
