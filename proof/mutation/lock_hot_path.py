"""The straight way through a contended lock's usual turn: each condition under which it leaves the
decision to the general rules, and each thing that it does, with a way to break it.

Two conditions are not here, as others imply them: nothing decided differently without them.
"""

from proof.mutation.mutant import Mutant

_FILE = "primitives/locks/hot_path.py"

TESTS = {_FILE: ("tests/model/test_lock_hot_path.py",)}

MUTANTS = [
    Mutant(
        "hot path: a set is not usual", _FILE, "        len(draft.names) > 1\n", "        False\n"
    ),
    Mutant(
        "hot path: a shared request is not usual",
        _FILE,
        "        or draft.mode is not Mode.EXCLUSIVE\n",
        "",
    ),
    Mutant(
        "hot path: a request that takes nothing is not usual",
        _FILE,
        "        or draft.wait_only\n",
        "",
    ),
    Mutant("hot path: a priority is not usual", _FILE, "        or draft.priority\n", ""),
    Mutant(
        "hot path: a wait that is journalled at its beginning is not usual",
        _FILE,
        "        or settings.report_waits_s is None\n",
        "",
    ),
    Mutant(
        "hot path: a job that waits elsewhere gets a free name by the general rules",
        _FILE,
        '        if tx.count(LOCK_WAITS, "job", (root_of(by),)):\n            return None\n',
        "",
    ),
    Mutant(
        "hot path: a name that waits for its first in the queue is not usual",
        _FILE,
        "if len(lock.holds) != 1 or lock.newest_at is not None:",
        "if len(lock.holds) > 1 or lock.newest_at is not None:",
    ),
    Mutant(
        "hot path: a queue that priorities have mixed is not usual",
        _FILE,
        "if len(lock.holds) != 1 or lock.newest_at is not None:",
        "if len(lock.holds) != 1:",
    ),
    Mutant(
        "hot path: a job does not queue behind itself",
        _FILE,
        "if held.mode is not Mode.EXCLUSIVE or within(by, held.by):",
        "if held.mode is not Mode.EXCLUSIVE:",
    ),
    Mutant(
        "hot path: queueing behind a holder that waits is not usual",
        _FILE,
        '    if tx.count(LOCK_WAITS, "job", (root_of(held.by),)):\n',
        "    if False:\n",
    ),
    Mutant(
        "hot path: a request behind a set is not usual",
        _FILE,
        "            len(last.names) > 1\n",
        "            False\n",
    ),
    Mutant(
        "hot path: a request behind a shared one is not usual",
        _FILE,
        "            or last.mode is not Mode.EXCLUSIVE\n",
        "",
    ),
    Mutant(
        "hot path: a request behind one that takes nothing is not usual",
        _FILE,
        "            or last.wait_only\n",
        "",
    ),
    Mutant(
        "hot path: a clock that is set back lets nobody overtake",
        _FILE,
        "            arrived_at = last.arrived_at\n",
        "            pass\n",
    ),
    Mutant(
        "hot path: the row of a resource records that somebody waits",
        _FILE,
        "    if last is None:\n",
        "    if False:\n",
    ),
    Mutant(
        "hot path: the token of a grant stays when its row changes",
        _FILE,
        "replace(lock_in(row), waited=True)",
        "replace(lock, waited=True)",
    ),
    Mutant(
        "hot path: a request watches the last in the queue",
        _FILE,
        "return Queued(waiter, last or held)",
        "return Queued(waiter, held)",
    ),
    Mutant(
        "hot path: where every change is journalled, so is a release",
        _FILE,
        'if len(names) > 1 or settings.journal == "all":',
        "if len(names) > 1:",
    ),
    Mutant(
        "hot path: the end of one of several holds is not usual",
        _FILE,
        "held = lock.holds[0] if len(lock.holds) == 1 else None",
        "held = lock.holds[0] if lock.holds else None",
    ),
    Mutant(
        "hot path: a holder releases no hold but its own",
        _FILE,
        "if held is None or held.id != hold_id or len(held.names) > 1:",
        "if held is None or len(held.names) > 1:",
    ),
    Mutant(
        "hot path: a release grants the next waiter",
        _FILE,
        "    if not lock.waited:\n        tx.delete(LOCKS, name)\n",
        "    if True:\n        tx.delete(LOCKS, name)\n",
    ),
    Mutant(
        "hot path: a release after the time to live says so",
        _FILE,
        "return not (held.lease.explicit and clock.reclaimable(held.lease, Liveness.ALIVE, tx.now))",
        "return True",
    ),
    Mutant(
        "hot path: a grant to a set is not usual",
        _FILE,
        "if len(waiter.names) > 1 or waiter.mode is not Mode.EXCLUSIVE or waiter.wait_only:",
        "if waiter.mode is not Mode.EXCLUSIVE or waiter.wait_only:",
    ),
    Mutant(
        "hot path: a grant to a sharer is not usual",
        _FILE,
        "if len(waiter.names) > 1 or waiter.mode is not Mode.EXCLUSIVE or waiter.wait_only:",
        "if len(waiter.names) > 1 or waiter.wait_only:",
    ),
    Mutant(
        "hot path: a waiter that takes nothing gets no grant",
        _FILE,
        "if len(waiter.names) > 1 or waiter.mode is not Mode.EXCLUSIVE or waiter.wait_only:",
        "if len(waiter.names) > 1 or waiter.mode is not Mode.EXCLUSIVE:",
    ),
    Mutant(
        "hot path: a grant to a job that waits twice is not usual",
        _FILE,
        '    if tx.count(LOCK_WAITS, "job", (root_of(waiter.by),)) > 1:\n',
        "    if False:\n",
    ),
    Mutant(
        "hot path: a granted waiter leaves the queue",
        _FILE,
        "    tx.delete(LOCK_WAITS, found[0].key)\n",
        "",
    ),
    Mutant(
        "hot path: the grant of a long wait is journalled",
        _FILE,
        "    if seconds < settings.journal_waits_s:\n",
        "    if True:\n",
    ),
    Mutant(
        "hot path: the row records that others wait",
        _FILE,
        "Lock(holds=(granted,), waited=others, newest_at=newest_at)",
        "Lock(holds=(granted,), newest_at=newest_at)",
    ),
    Mutant(
        "hot path: the row keeps when its newest waiter arrived",
        _FILE,
        "    newest_at = lock.newest_at if others else None\n",
        "    newest_at = None\n",
    ),
    Mutant(
        "hot path: an empty queue has no newest waiter",
        _FILE,
        "    newest_at = lock.newest_at if others else None\n",
        "    newest_at = lock.newest_at\n",
    ),
    Mutant(
        "hot path: a waiter that is granted a name is woken",
        _FILE,
        "    tx.notify(waiter.address)\n",
        "",
    ),
    Mutant(
        "hot path: a waiter for another process holds until it wakes",
        _FILE,
        "hold_of(waiter, waiter.names, waiter.process, now, settings.lease_s, token)",
        "hold_of(waiter, waiter.names, waiter.holder, now, settings.lease_s, token)",
    ),
]
