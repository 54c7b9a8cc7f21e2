"""A machine of its own in a network of its own: reads calls from its input, a line each, and
answers each by a line of JSON.
"""

import json
import sys
from typing import Any

import holdfast
from holdfast.kernel.errors import HoldfastError
from holdfast.primitives.locks import Grant
from holdfast.runtime.connection import Holdfast
from tests.harness.timeouts import PATIENCE_S


class Calls:
    """The commands for a machine."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._grant: Grant | None = None

    def acquire(self, name: str) -> int:
        self._grant = self._hf.locks.acquire(name, by=str(self._hf.settings.host_id), timeout_s=60)
        return self._grant.token

    def lost(self) -> bool:
        assert self._grant is not None
        return self._grant.lost.wait(PATIENCE_S)

    def check_token(self, name: str, token: int) -> None:
        self._hf.check_token(name, token)

    def register(self) -> str:
        return self._hf.jobs.register_job("work", agent="a", agent_session="s").job_id

    def pick(self) -> tuple[str, int | None] | None:
        job = self._hf.jobs.pick_pending("s", wait_s=60)
        return None if job is None else (job.job_id, job.token)

    def put_back(self, job_id: str) -> None:
        self._hf.jobs.update_status(job_id, "pending")

    def complete(self, job_id: str, token: int) -> str:
        return self._hf.jobs.update_status(job_id, "completed", token=token).status.value


def _answer(calls: Calls, name: str, arguments: list[Any]) -> dict[str, Any]:
    try:
        return {"result": getattr(calls, name)(*arguments)}
    except HoldfastError as error:
        return {"error": error.code, "outcome": error.fields.get("outcome")}


def main() -> None:
    with holdfast.connect() as hf:
        calls = Calls(hf)
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            print(json.dumps(_answer(calls, name, arguments)), flush=True)


if __name__ == "__main__":
    main()
