"""Care for a claim whose wrapper was killed while its command works: renew it, and release it when
the tree has ended.

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
from typing import NamedTuple

import msgspec

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import HoldfastError, Lost, NotFound
from holdfast.processes import fifo
from holdfast.processes.command import Caretaker, Claim, Command
from holdfast.processes.guardian import Guard
from holdfast.runtime.connection import Holdfast, connect

CLAIM = "HOLDFAST_CLAIM"
"""The environment variable that says what is cared for."""
_STORE_LOST_S = 1.0


class _Post(Plain, frozen=True, kw_only=True):
    """What a caretaker must know of the tree and the store."""

    claim: Claim
    command: int
    grace_s: float
    fifo: str | None
    cwd: str
    store: str | None
    namespace: str


class _Acts(NamedTuple):
    renew: Callable[[], object]
    release: Callable[[], object]


def caretaker_for(hf: Holdfast, command: Command, claim: Claim) -> Caretaker:
    """The caretaker of a claim."""
    post = _Post(
        claim=claim,
        command=command.pid,
        grace_s=command.grace_s,
        fifo=command.path,
        cwd=os.getcwd(),
        store=hf.settings.store,
        namespace=hf.store.namespace,
    )
    around = {CLAIM: msgspec.json.encode(post).decode()}
    if hf.settings.host_id is not None:
        around["HOLDFAST_HOST_ID"] = hf.settings.host_id
    return Caretaker([sys.executable, "-m", "holdfast.runtime.caretaker"], around)


def main() -> None:
    """Care for the claim that the environment names, until its tree has ended."""
    post = msgspec.json.decode(os.environ.pop(CLAIM).encode(), type=_Post)
    # Its holdfast.toml counts, which is looked for from the working folder on.
    with contextlib.suppress(OSError):
        os.chdir(post.cwd)
    guard = Guard(post.command, post.grace_s)
    over = threading.Event()
    care = threading.Thread(target=_care, args=(post, over), daemon=True)
    care.start()
    while guard.reap():
        guard.wait([])
    if post.fifo is not None:
        # First: what is released, or cleared away, belongs to a tree that has ended.
        fifo.end(post.fifo)
    guard.close()
    over.set()
    care.join()


def _care(post: _Post, over: threading.Event) -> None:
    """Renew until the tree is over, then release. A store that is away is asked again."""
    every_s = post.claim.lease_s / 3
    while not over.is_set():
        try:
            with connect(post.store, namespace=post.namespace, create=False) as hf:
                renew = _acts(hf, post.claim).renew
                renew()
                while not over.wait(every_s):
                    renew()
        except (Lost, NotFound):
            if post.claim.ends_when_lost:
                os.kill(os.getpid(), signal.SIGTERM)
            return
        except HoldfastError:
            over.wait(min(_STORE_LOST_S, every_s))
    with (
        contextlib.suppress(HoldfastError),
        connect(post.store, namespace=post.namespace, create=False) as hf,
    ):
        _acts(hf, post.claim).release()


def _acts(hf: Holdfast, claim: Claim) -> _Acts:
    if claim.kind == "lock":
        return _Acts(
            partial(hf.locks.renew_token, claim.token), partial(hf.locks.release_token, claim.token)
        )
    if claim.kind == "workflow":
        workflows = hf.workflows
        return _Acts(
            partial(workflows.renew, claim.name, claim.token),
            partial(workflows.release, claim.name, claim.token),
        )
    agents, names = hf.agents, (claim.name, claim.generation_id)

    def remove() -> None:
        agent = agents.get(claim.name)
        agents.remove(*names, token=claim.token)
        agents.clear_after(agent)

    return _Acts(partial(agents.refresh, *names, token=claim.token, lease_s=claim.lease_s), remove)


if __name__ == "__main__":
    main()
