"""A workload of single calls: threads that use one kind of object at random, each call recorded.

All processes go on to new keys at the same instants, so that the history falls into small parts.
"""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.kernel.errors import (
    Fenced,
    HoldfastError,
    ImpossibleTransition,
    LeaseLost,
    LockTimeout,
    NotFound,
)
from holdfast.primitives.queue import Draft, QueueRequest
from holdfast.primitives.queue.records import Receipt
from holdfast.runtime.connection import Holdfast
from proof.crowd.crowd import Run
from proof.crowd.plan import Plan
from proof.histories import Operation, Recorder, died, read
from tests.harness.queue_steps import SteppedQueue


class Player:
    """One thread."""

    def __init__(
        self, plan: Plan, number: int, hf: Holdfast, recorder: Recorder, until: float
    ) -> None:
        self.plan = plan
        self.name = f"{plan.process}-{number}"
        self.hf = hf
        self.call = recorder.call
        self.until = until
        self.draw = random.Random(f"{plan.crowd.seed}/{self.name}")
        self.made = 0
        self.stale: list[tuple[str, str, int]] = []
        """What it held before, by key: a name and its token."""
        self.pause = threading.Event()

    def run(self) -> None:
        while time.monotonic() < self.until:
            key = f"{self.plan.crowd.kind}-{int(time.monotonic() / self.plan.crowd.part_s)}"
            try:
                KINDS[self.plan.crowd.kind](self, key)
            except HoldfastError as error:
                # The store does not know the outcome of the call, so it stays pending. No rule
                # refuses a call here.
                if error.code not in _UNHEARD:
                    raise
                self.work(0.05)

    def work(self, most_s: float = 0.004) -> None:
        self.pause.wait(self.draw.random() * most_s)

    def new(self) -> str:
        self.made += 1
        return f"{self.name}-{self.made}"

    def old(self, key: str) -> tuple[str, int] | None:
        """Something that it held on this key before."""
        found = [(name, token) for at, name, token in self.stale[-20:] if at == key]
        return self.draw.choice(found) if found else None


_UNHEARD = {"store_unavailable", "lock_timeout"}


# Locks.


def locks(player: Player, key: str) -> None:
    draw = player.draw
    wait = draw.random() < 0.5
    # Waiters have names of their own: a request without a wait may be refused because of a waiter.
    names = draw.sample(
        [f"{key}-{'w' if wait else 't'}{number}" for number in range(3)], draw.choice([1, 1, 2])
    )
    mode = draw.choice(["exclusive", "exclusive", "shared"])
    ttl_s = draw.choice([None, None, 0.03, 0.1])
    held = _acquire(player, names, mode, wait, ttl_s)
    if held is None:
        return
    tokens = dict(held.tokens)
    if draw.random() < 0.3:
        _check(player, names[0], tokens[names[0]])
    if ttl_s is not None and draw.random() < 0.3:
        with player.call("renew", names, tokens=tokens, ttl_s=0.1) as pending:
            try:
                player.hf.locks.renew(held, 0.1)
                pending.answer(True)
            except LeaseLost:
                pending.answer(False)
    player.work(0.15 if ttl_s is not None and draw.random() < 0.2 else 0.006)
    with player.call("release", names, tokens=tokens) as pending:
        pending.answer(player.hf.locks.release(held))
    if draw.random() < 0.3:
        _check(player, names[0], tokens[names[0]])


def _acquire(
    player: Player,
    names: list[str],
    mode: str,
    wait: bool,
    ttl_s: float | None,
    *,
    timeout_s: float | None = None,
) -> Any:
    locks = player.hf.locks
    held: holdfast.Grant | None
    limit_s = player.draw.choice([0.05, 5.0]) if timeout_s is None else timeout_s
    with player.call(
        "acquire", names, by=player.name, mode=mode, wait=wait, ttl_s=ttl_s
    ) as pending:
        try:
            if wait:
                held = locks.acquire(
                    names, by=player.name, mode=mode, timeout_s=limit_s, ttl_s=ttl_s
                )
            else:
                held = locks.try_acquire(names, by=player.name, mode=mode, ttl_s=ttl_s)
        except LeaseLost:
            # Granted, and over before this thread ran again: its token is unknown.
            return None
        except LockTimeout as error:
            if error.fields.get("by") != player.name:
                raise
            held = None
        pending.answer(None if held is None else {"tokens": dict(held.tokens)})
    return held


def _check(player: Player, name: str, token: int) -> None:
    with player.call("check", [name], token=token) as pending:
        try:
            player.hf.check_token(name, token)
            pending.answer(True)
        except Fenced:
            pending.answer(False)


def turns(player: Player, key: str) -> None:
    """One name, for which all wait."""
    held = _acquire(player, [key], "exclusive", True, None, timeout_s=20.0)
    if held is not None:
        player.work()
        with player.call("release", [key], tokens=dict(held.tokens)) as pending:
            pending.answer(player.hf.locks.release(held))


# Claims.


def claims(player: Player, key: str) -> None:
    draw, jobs = player.draw, player.hf.jobs
    if draw.random() < 0.55:
        job, priority = player.new(), draw.choice([0, 0, 0, 5])
        with player.call("register", [key], job=job, priority=priority) as pending:
            made = jobs.register_job(
                "work",
                agent="a",
                agent_session=key,
                job_id=job,
                priority=priority,
                max_attempts=100,
            )
            pending.answer({"arrival": made.arrival})
    elif (old := player.old(key)) and draw.random() < 0.2:
        _verdict(player, key, "finish", *old)
    else:
        # A call that waits is made only for something that will come.
        wait_s = draw.choice([0.0, 0.0, 0.6])
        with player.call("pick", [key], wait=wait_s > 0) as pending:
            found = jobs.pick_pending(key, wait_s=wait_s, holder=player.hf.processes.current())
            pending.answer(None if found is None else {"job": found.job_id, "token": found.token})
        while found is not None and found.token is not None:
            player.stale.append((key, found.job_id, found.token))
            player.work()
            found = _end(player, key, found)


def _end(player: Player, key: str, job: Any) -> Any:
    how = player.draw.choice(["finish", "finish", "requeue", "finish_and_pick", "leave"])
    if how in ("finish", "requeue"):
        _verdict(player, key, how, job.job_id, job.token)
    elif how == "finish_and_pick":
        with player.call("finish_and_pick", [key], job=job.job_id, token=job.token) as pending:
            try:
                holder = player.hf.processes.current()
                after = player.hf.jobs.finish_and_pick(
                    job.job_id, "completed", token=job.token, holder=holder
                )
            except Fenced:
                pending.answer({"done": False, "picked": None})
                return None
            picked = after.picked
            pending.answer(
                {"done": True, "picked": picked and {"job": picked.job_id, "token": picked.token}}
            )
            return picked
    return None


def _verdict(player: Player, key: str, call: str, job: str, token: int) -> None:
    with player.call(call, [key], job=job, token=token) as pending:
        try:
            if call == "finish":
                player.hf.jobs.update_status(job, "completed", token=token)
            else:
                player.hf.jobs.requeue(job, token=token)
            pending.answer(True)
        except Fenced:
            pending.answer(False)


# Counted holds.


def counts(player: Player, key: str) -> None:
    holds, by = player.hf.holds, f"{player.name}-{player.draw.randrange(2)}"
    call = player.draw.choice(["take", "take", "drop", "drop", "count"])
    if call == "count":
        with player.call(call, [key]) as pending:
            pending.answer(holds.count(key))
        return
    with player.call(call, [key], by=by) as pending:
        try:
            pending.answer(holds.take(key, by=by) if call == "take" else holds.drop(key, by=by))
        except NotFound:
            pending.answer(None)


# The queue.


def fifo(player: Player, key: str) -> None:
    draw = player.draw
    queue = SteppedQueue(player.hf.store, player.hf.log, key)
    doing = draw.choices([_accept, _claim, _interfere, _look], [40, 45, 12, 3])[0]
    doing(player, key, queue)


def _accept(player: Player, key: str, queue: SteppedQueue) -> None:
    old = player.old(key)
    name = old[0] if old and player.draw.random() < 0.2 else player.new()
    epoch = player.draw.choice([1, 1, 1, 2])
    with player.call("accept", [key], name=name, epoch=epoch) as pending:
        (request,) = queue.accept([Draft(kind="k", payload={}, idempotency_key=name)], epoch=epoch)
        assert isinstance(request, QueueRequest)
        pending.answer({"arrival": request.arrival})
    player.stale.append((key, name, 0))


def _claim(player: Player, key: str, queue: SteppedQueue) -> None:
    epoch = player.draw.choice([1, 1, 2])
    with player.call("claim", [key], epoch=epoch) as pending:
        request = queue.claim(epoch=epoch)
        pending.answer(
            None if request is None else {"name": request.idempotency_key, "token": request.token}
        )
    if request is None or request.token is None or request.idempotency_key is None:
        return
    player.stale.append((key, request.idempotency_key, request.token))
    player.work(0.003)
    call = player.draw.choice(["complete", "complete", "put_back", "leave"])
    if call != "leave":
        _owned(player, key, queue, call, request.request_id, request.idempotency_key, request.token)


def _owned(
    player: Player, key: str, queue: SteppedQueue, call: str, request_id: str, name: str, token: int
) -> None:
    with player.call(call, [key], name=name, token=token) as pending:
        try:
            if call == "complete":
                queue.complete(request_id, token, {})
            else:
                queue.change(lambda _, line: line.put_back(request_id, token))
            pending.answer(True)
        except Fenced:
            pending.answer(False)


def _interfere(player: Player, key: str, queue: SteppedQueue) -> None:
    """An operator's call, and one that comes too late."""
    if player.draw.random() < 0.3:
        detail = dict.fromkeys(Receipt, "gone")
        with player.call("abandon", [key]) as pending:
            ended = queue.change(lambda _, line: line.abandon_running(code="gone", detail=detail))
            pending.answer([one.idempotency_key for one in ended])
        return
    waiting = {one.idempotency_key: one for one in queue.list() if one.idempotency_key}
    if not waiting:
        return
    name = player.draw.choice(sorted(waiting))
    request_id, token = waiting[name].request_id, (player.old(key) or ("", 0))[1]
    call = player.draw.choice(["cancel", "readmit", "complete"])
    if call == "complete":
        _owned(player, key, queue, call, request_id, name, token)
        return
    arguments = {"name": name} if call == "cancel" else {"name": name, "epoch": 2}
    with player.call(call, [key], **arguments) as pending:
        try:
            if call == "cancel":
                queue.cancel(request_id)
            else:
                queue.change(lambda _, line: line.readmit(request_id, epoch=2))
            pending.answer(True)
        except ImpossibleTransition:
            pending.answer(False)


def _look(player: Player, key: str, queue: SteppedQueue) -> None:
    with player.call("look", [key]) as pending:
        pending.answer(seen_in(queue))


def seen_in(queue: SteppedQueue) -> dict[str, Any]:
    """The state of a queue, in the form of its specification."""
    found = queue.list(limit=10_000)
    running = [one.idempotency_key for one in found if one.state.value == "running"]
    assert len(running) <= 1, f"{running} run at once"
    return {
        "waiting": [one.idempotency_key for one in found if one.state.value == "accepted"],
        "running": running[0] if running else None,
        "ended": [
            one.idempotency_key for one in found if one.state.value in ("completed", "failed")
        ],
    }


KINDS: dict[str, Callable[[Player, str], None]] = {
    "locks": locks,
    "turns": turns,
    "claims": claims,
    "counts": counts,
    "fifo": fifo,
}


def warm(hf: Holdfast) -> None:
    hf.locks.status("warm")
    hf.jobs.peek("warm")


def threads(plan: Plan, hf: Holdfast, until: float) -> dict[str, Callable[[], None]]:
    recorder = Recorder(Path(plan.folder) / f"{plan.process}.history", process=plan.process)
    players = [Player(plan, number, hf, recorder, until) for number in range(plan.crowd.threads)]
    return {player.name: player.run for player in players}


def history_of(run: Run, folder: Path) -> list[Operation]:
    """The recorded calls of a crowd, and the deaths of its processes."""
    deaths = [died(blow.process, blow.at) for blow in run.blows if blow.kind == "killing"]
    for process in run.processes:
        # An orderly end frees nothing by itself, but its process is gone. The open calls and the
        # claims of a failed process are treated like those of a killed one.
        deaths.append(died(process, run.began_s if process in run.failed else run.ended_s))
    return [*read(sorted(folder.glob("*.history"))), *deaths]
