"""The caretaker: renews a claim whose wrapper was killed while its command works, and releases it
when the tree has ended.

A guardian executes this program in its own place (`python -m holdfast.runtime.caretaker`), so the
tree stays its own. It is needed where a claim lives by its lease: as other machines see it, and for
agents. On one machine the tree itself keeps other claims.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import HoldfastError, Lost, NotFound
from holdfast.kernel.lease import renew_every_s
from holdfast.processes import fifo
from holdfast.processes.command import Caretaker, Command
from holdfast.processes.guardian import Guard
from holdfast.runtime.connection import Holdfast, connect
from holdfast.runtime.custody import Claim

# The environment variable with the task of the caretaker.
_TASK = "HOLDFAST_CLAIM"
_STORE_LOST_S = 1.0


class _Task(Plain, frozen=True, kw_only=True):
    """What a caretaker must know of the claim, the tree and the store."""

    claim: Claim
    command: int
    grace_s: float
    fifo: str | None
    cwd: str
    store: str | None
    namespace: str


def caretaker_for(hf: Holdfast, command: Command, claim: Claim) -> Caretaker:
    task = _Task(
        claim=claim,
        command=command.pid,
        grace_s=command.grace_s,
        fifo=command.path,
        cwd=os.getcwd(),
        store=hf.settings.store,
        namespace=hf.store.namespace,
    )
    environment = {_TASK: msgspec.json.encode(task).decode()}
    if hf.settings.host_id is not None:
        environment["HOLDFAST_HOST_ID"] = hf.settings.host_id
    return Caretaker([sys.executable, "-m", "holdfast.runtime.caretaker"], environment)


def main() -> None:
    """Care for the claim that the environment names, until its tree has ended."""
    task = msgspec.json.decode(os.environ.pop(_TASK).encode(), type=_Task)
    # Its holdfast.toml counts, which is searched from the working folder on.
    with contextlib.suppress(OSError):
        os.chdir(task.cwd)
    guard = Guard(task.command, task.grace_s)
    over = threading.Event()
    care = threading.Thread(target=_care, args=(task, over), daemon=True)
    care.start()
    while guard.reap():
        guard.wait([])
    if task.fifo is not None:
        # First: a claim may be released, and an agent's files removed, only when the tree has
        # ended.
        fifo.end(task.fifo)
    guard.close()
    over.set()
    care.join()


def _care(task: _Task, over: threading.Event) -> None:
    """Renew until the tree is over, then release. A store that does not answer is tried again."""
    every_s = renew_every_s(task.claim.lease_s)
    while not over.is_set():
        try:
            with connect(task.store, namespace=task.namespace, create=False) as hf:
                renew, _ = _actions(hf, task.claim)
                renew()
                while not over.wait(every_s):
                    renew()
        except (Lost, NotFound):
            if task.claim.ends_when_lost:
                os.kill(os.getpid(), signal.SIGTERM)
            return
        except HoldfastError:
            over.wait(min(_STORE_LOST_S, every_s))
    with (
        contextlib.suppress(HoldfastError),
        connect(task.store, namespace=task.namespace, create=False) as hf,
    ):
        _, release = _actions(hf, task.claim)
        release()


def _actions(hf: Holdfast, claim: Claim) -> tuple[Callable[[], object], Callable[[], object]]:
    """How to renew a claim, and how to release it."""
    if claim.kind == "lock":
        return (
            partial(hf.locks.renew_token, claim.token),
            partial(hf.locks.release_token, claim.token),
        )
    if claim.kind == "workflow":
        return (
            partial(hf.workflows.renew, claim.name, claim.token),
            partial(hf.workflows.release, claim.name, claim.token),
        )
    agents, names = hf.agents, (claim.name, claim.generation_id)

    def remove() -> None:
        agent = agents.get(claim.name)
        agents.remove(*names, token=claim.token)
        agents.clear_after(agent)

    return partial(agents.refresh, *names, token=claim.token, lease_s=claim.lease_s), remove


if __name__ == "__main__":
    main()
