"""Rules of locks: compatibility, order, what is kept; each with a way to break it."""

from proof.mutation.mutant import Mutant

_RULES = "primitives/locks/policy.py"
_TURNS = "primitives/locks/transaction.py"
_TABLE = "primitives/locks/table.py"
_LOCKS = "primitives/locks/manager.py"
_RECORD = "primitives/locks/records.py"
_ACQUISITION = "primitives/locks/acquisition.py"
_CONTEXT = "primitives/locks/context.py"

LOCK_TESTS = (
    "tests/unit/test_lock_rules.py",
    "tests/unit/test_locks.py",
    "tests/unit/test_locks_order.py",
    "tests/unit/test_locks_leases.py",
    "tests/unit/test_locks_events.py",
    "tests/model/test_lock_cases.py",
)
"""The tests of the lock manager, the nearest first. A rule of one file may fail in the test of
another.
"""

TESTS = dict.fromkeys((_RULES, _TURNS, _TABLE, _LOCKS, _RECORD, _ACQUISITION, _CONTEXT), LOCK_TESTS)

MUTANTS = [
    # Locks: compatibility and order.
    Mutant(
        "an exclusive holder keeps others out",
        _RECORD,
        "return one is Mode.EXCLUSIVE or other is Mode.EXCLUSIVE",
        "return one is Mode.EXCLUSIVE and other is Mode.EXCLUSIVE",
    ),
    Mutant(
        "sharers hold at the same time",
        _RECORD,
        "return one is Mode.EXCLUSIVE or other is Mode.EXCLUSIVE",
        "return True",
    ),
    Mutant(
        "a shared hold does not cover an exclusive request",
        _RECORD,
        "(self.mode is Mode.EXCLUSIVE or mode is Mode.SHARED) and ",
        "",
    ),
    Mutant(
        "two parts of a job keep each other out",
        _RECORD,
        "return by == job or (by.startswith(job) and by[len(job)] == PART)",
        "return root_of(by) == root_of(job)",
    ),
    Mutant(
        "a job is not another job whose name starts with its own",
        _RECORD,
        " and by[len(job)] == PART)",
        ")",
    ),
    Mutant(
        "priority moves a request forward",
        _RECORD,
        "- round(priority * age_s * 1_000_000)",
        "+ round(priority * age_s * 1_000_000)",
    ),
    Mutant(
        "the token of an unchanged grant is the revision of its row",
        _RECORD,
        "if len(lock.holds) == 1 and not lock.holds[0].token:",
        "if False:",
    ),
    Mutant(
        "the number of sharers is bounded",
        _RULES,
        "if mode is Mode.SHARED and not covered and _is_full(table, name, waiter):",
        "if False:",
    ),
    Mutant(
        "in a full set of sharers, one that can leave prevents the deadlock",
        _RULES,
        "next(idle, holds[0])",
        "holds[0]",
    ),
    Mutant(
        "a waiter for a place among sharers watches all of them",
        _RULES,
        "(full or conflict(hold.mode, mode))",
        "conflict(hold.mode, mode)",
    ),
    Mutant(
        "a request queues behind those before it",
        _RULES,
        "            if other.place >= place:\n                break\n",
        "            break\n",
    ),
    Mutant(
        "a request does not queue behind those after it",
        _RULES,
        "            if other.place >= place:\n                break\n",
        "",
    ),
    Mutant(
        "the number of times a request is overtaken is bounded",
        _RULES,
        "if other.overtaken >= BACKFILL_MAX:",
        "if False:",
    ),
    Mutant(
        "a blocked request lets others pass",
        _RULES,
        "if other.overtaken >= BACKFILL_MAX:",
        "if True:",
    ),
    Mutant(
        "a job overtakes those that wait for it",
        _RULES,
        "if other.id in overtaken or waits_for_job(table, other, waiter.by, unrelated):",
        "if other.id in overtaken:",
    ),
    Mutant(
        "a cycle is found",
        _RULES,
        "            if within(waiter.by, hold.by):\n                steps = []",
        "            if False:\n                steps = []",
    ),
    Mutant(
        "a cycle through several jobs is found",
        _RULES,
        "            for next_one in table.waits_of_job(hold.by):\n                if next_one.id not "
        "in led_by:",
        "            for next_one in ():\n                if next_one.id not in led_by:",
    ),
    Mutant(
        "the nearest request ahead is watched",
        _RULES,
        "                nearest.append(other)\n",
        "                pass\n",
    ),
    Mutant(
        "a wait that takes nothing blocks nobody",
        _RULES,
        "not other.wait_only and conflict(other.mode, waiter.mode) and",
        "conflict(other.mode, waiter.mode) and",
    ),
    # Locks: steps on the table.
    Mutant(
        "a release grants the next waiter",
        _TURNS,
        "        self.hand_over(hold.names)\n\n    def release_if_held",
        "\n    def release_if_held",
    ),
    Mutant(
        "a request that gives up lets the next waiter go",
        _TURNS,
        "        self._remove(waiter, kind, **data)\n        self.hand_over(waiter.names)",
        "        self._remove(waiter, kind, **data)",
    ),
    Mutant(
        "a dead waiter is removed only with waiters of its own process",
        _TURNS,
        "takewhile(lambda one: one.process == waiter.process, before)",
        "before",
    ),
    Mutant(
        "the waiters of a dead process are removed together",
        _TURNS,
        "[waiter, *self._neighbours_of_process(waiter)] if dead else [waiter]",
        "[waiter]",
    ),
    Mutant(
        "an unknown waiter is removed alone",
        _TURNS,
        "[waiter, *self._neighbours_of_process(waiter)] if dead else [waiter]",
        "[waiter, *self._neighbours_of_process(waiter)]",
    ),
    Mutant(
        "a reaped grant lets the next waiter go",
        _TURNS,
        "        self.hand_over([name for gone in reaped for name in gone.names])\n",
        "",
    ),
    Mutant(
        "a waiter that is granted a name is woken",
        _TURNS,
        "            self._grant(current, overtaken, waited=True)\n            "
        "self._tx.notify(current.address)",
        "            self._grant(current, overtaken, waited=True)",
    ),
    Mutant(
        "a holder that loses its grant is notified",
        _TURNS,
        "        self._tx.notify(lost_topic(requester_of(hold.id)))\n",
        "",
    ),
    Mutant(
        "a verdict about another process reaps nothing",
        _TURNS,
        "if found is None or found.process != suspect.process:",
        "if found is None:",
    ),
    Mutant(
        "only a reclaimable hold is reaped",
        _TURNS,
        "if not self._clock.reclaimable(found.lease, suspect.liveness, self._tx.now):",
        "if hold is None and not self._clock.reclaimable(found.lease, suspect.liveness, "
        "self._tx.now):",
    ),
    Mutant(
        "the place of a live waiter is not reaped",
        _TURNS,
        "if not self._clock.reclaimable(found.lease, suspect.liveness, self._tx.now):",
        "if hold is not None and not self._clock.reclaimable(found.lease, suspect.liveness, "
        "self._tx.now):",
    ),
    Mutant(
        "each overtaking is counted",
        _TURNS,
        "overtaken=other.overtaken + 1",
        "overtaken=other.overtaken",
    ),
    Mutant(
        "a clock that is set back lets nobody overtake",
        _TURNS,
        "if last is not None and last.arrived_at > arrived_at:",
        "if False:",
    ),
    Mutant(
        "a clock that is set back lets nobody overtake at another priority",
        _TURNS,
        "if newest_at is not None and newest_at > arrived_at:",
        "if False:",
    ),
    Mutant(
        "a lease begins with the grant",
        _RECORD,
        "lease=leases.grant(now, lease_s if ttl_s is None else ttl_s, explicit=explicit),",
        "lease=waiter.lease,",
    ),
    Mutant(
        "a grant with a time to live ends by it",
        _RECORD,
        "lease_s if ttl_s is None else ttl_s, explicit=explicit)",
        "lease_s, explicit=explicit)",
    ),
    Mutant(
        "a grant remembers its time to live",
        _RECORD,
        "        ttl_s=ttl_s,\n",
        "",
    ),
    Mutant(
        "a grant for another process says so",
        _RECORD,
        "        on_behalf=waiter.grantee is not None,\n",
        "",
    ),
    Mutant(
        "a contended grant is journalled",
        _TURNS,
        "contended = waits_elsewhere or any(lock.holds or lock.waited for lock in locks)",
        "contended = False",
    ),
    Mutant(
        "the grant of a long wait is journalled",
        _TURNS,
        "journalled = seconds >= self._journal_waits_s",
        "journalled = False",
    ),
    Mutant(
        "the grant of a short wait is not journalled",
        _TURNS,
        "journalled = seconds >= self._journal_waits_s",
        "journalled = True",
    ),
    Mutant(
        "several grants of a transaction have different tokens",
        _TURNS,
        "else self._tx.token()",
        "else self._tx.revision",
    ),
    Mutant(
        "a cycle that a grant closes is ended",
        _TURNS,
        "while self._heap or self._end_a_cycle():",
        "while self._heap:",
    ),
    Mutant(
        "the youngest request of a cycle is refused",
        _TURNS,
        "youngest = max((step",
        "youngest = min((step",
    ),
    Mutant(
        "a renewal without a TTL repeats the last one",
        _TURNS,
        "ttl_s = hold.ttl_s if ttl_s is None else ttl_s",
        "ttl_s = ttl_s",
    ),
    Mutant(
        "waiters behind a request that leaves are woken",
        _TURNS,
        "            self._wake_behind(waiter)\n        self.table.dequeue(waiter)",
        "            pass\n        self.table.dequeue(waiter)",
    ),
    Mutant(
        "a wait that would close a cycle is refused",
        _TURNS,
        "if holders_wait and (steps := policy.find_cycle(self.table, waiter)):",
        "if holders_wait and (steps := []):",
    ),
    Mutant(
        "a set is recorded under each of its names",
        _TABLE,
        "        for name in hold.names:\n            lock = self.lock(name)",
        "        for name in hold.names[:1]:\n            lock = self.lock(name)",
    ),
    Mutant(
        "a free resource has no row",
        _TABLE,
        "            if lock.holds or lock.waited:\n                self.tx.put(LOCKS, name, "
        "lock)\n            else:\n                self.tx.delete(LOCKS, name)",
        "            self.tx.put(LOCKS, name, lock)",
    ),
    Mutant(
        "the row of a resource records that somebody waits",
        _TABLE,
        "replace(lock, waited=True, newest_at=newest_at)",
        "replace(lock, newest_at=newest_at)",
    ),
    Mutant(
        "a request leaves all its queues",
        _TABLE,
        "            self.tx.delete(LOCK_WAITS, key)\n            self._queue(row.name)",
        "            self._queue(row.name)",
    ),
    # Locks: requests, waits, grants.
    Mutant(
        "a quick grant takes a whole set or nothing",
        _ACQUISITION,
        "items = [(name, lock) for name in names]",
        "items = [(name, lock) for name in names[:1]]",
    ),
    Mutant(
        "a failed withdrawal is tried again later",
        _CONTEXT,
        "unfinished=lambda: bool(self.withdrawals),",
        "",
    ),
    Mutant(
        "a release also frees names whose rows were changed",
        _LOCKS,
        "if freed < len(grant.taken):",
        "if False:",
    ),
    Mutant(
        "a forked child releases nothing of its parent",
        _LOCKS,
        'if grant.gone == "released" or grant.pid != os.getpid():',
        'if grant.gone == "released":',
    ),
    Mutant(
        "the end of a block reports a lost grant",
        _LOCKS,
        'if not self.release(grant) and grant.gone == "lost" and raising:',
        "if not self.release(grant) and False:",
    ),
    Mutant(
        "freeing by name leaves other jobs alone",
        _TURNS,
        "                if hold.by == by:\n                    freed[name]",
        "                if True:\n                    freed[name]",
    ),
    Mutant(
        "a lost grant is not suspended",
        _LOCKS,
        "            # After `listen`: a loss is seen here, or notified.\n            "
        "self.check(grant)\n",
        "",
    ),
    Mutant(
        "a grant that must be renewed is not suspended",
        _LOCKS,
        "if not self._store.embedded or grant.ttl_s is not None or grant.taken != grant.names:",
        "if not self._store.embedded or grant.taken != grant.names:",
    ),
    Mutant(
        "a grant that is not suspended is kept as before",
        _LOCKS,
        "            if kept:\n                self._context.keeper.add(grant)\n",
        "            pass\n",
    ),
    Mutant(
        "the loss of a resumed grant is noticed",
        _LOCKS,
        "        self._context.resume_ids(saved.id)\n",
        "",
    ),
]
