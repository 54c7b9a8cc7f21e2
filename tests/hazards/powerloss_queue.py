"""Several processes at one queue, to be run under strace with a plan, the root and the
acknowledgements as arguments.

What they acknowledge is their history: each call as it is made, and each answer as it is known.
"""

import contextlib
import json
import multiprocessing
import random
import sys
from pathlib import Path
from typing import Any

from holdfast.kernel.errors import Fenced
from holdfast.primitives.journal import Journal
from holdfast.primitives.queue import Draft, QueueRequest
from holdfast.stores.sqlite import database
from holdfast.stores.sqlite.store import SqliteStore
from proof.histories import Recorder
from tests.harness.queue_steps import SteppedQueue

STORE = Path("store.sqlite")
QUEUE = "q"


def queue_in(store: SqliteStore) -> SteppedQueue:
    return SteppedQueue(store, Journal(store, actor="test"), QUEUE)


def work(root: str, acknowledgements: str, name: str, plan: dict[str, Any]) -> None:
    if plan["planted"] == "lost_sync":
        database.Database.sync = lambda self, connection: None  # type: ignore[method-assign]
    recorder = Recorder(Path(acknowledgements), process=name)
    draw = random.Random(f"{plan['seed']}/{name}")
    with contextlib.closing(SqliteStore(Path(root) / STORE, boot_id="before")) as store:
        queue = queue_in(store)
        for number in range(plan["changes"]):
            if draw.random() < 0.6:
                _accept(recorder, queue, f"{name}-{number}")
            else:
                _claim_and_complete(recorder, queue)


def _accept(recorder: Recorder, queue: SteppedQueue, name: str) -> None:
    with recorder.call("accept", [QUEUE], name=name, epoch=1) as pending:
        (request,) = queue.accept([Draft(kind="k", payload={}, idempotency_key=name)])
        assert isinstance(request, QueueRequest)
        pending.answer({"arrival": request.arrival})


def _claim_and_complete(recorder: Recorder, queue: SteppedQueue) -> None:
    with recorder.call("claim", [QUEUE], epoch=1) as pending:
        request = queue.claim()
        pending.answer(
            None if request is None else {"name": request.idempotency_key, "token": request.token}
        )
    if request is None or request.token is None:
        return
    with recorder.call(
        "complete", [QUEUE], name=request.idempotency_key, token=request.token
    ) as pending:
        try:
            queue.complete(request.request_id, request.token, {})
            pending.answer(True)
        except Fenced:
            pending.answer(False)


def main(plan: dict[str, Any], root: str, acknowledgements: str) -> None:
    context = multiprocessing.get_context("fork")
    names = [f"p{number}" for number in range(plan["processes"])]
    processes = [
        context.Process(target=work, args=(root, acknowledgements, name, plan)) for name in names
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if failed := [process.exitcode for process in processes if process.exitcode]:
        raise SystemExit(f"processes ended with {failed}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
