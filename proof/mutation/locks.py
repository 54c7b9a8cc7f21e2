"""Rules of locks: who is compatible with whom, whose turn it is, what is kept; each with a way to
break it.
"""

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
"""Those of the lock manager, the nearest first: its rules show in each other's tests."""

TESTS = dict.fromkeys((_RULES, _TURNS, _TABLE, _LOCKS, _RECORD, _ACQUISITION, _CONTEXT), LOCK_TESTS)

MUTANTS = [
    # Locks: the rules of turns.
    Mutant(
        "an exclusive holder keeps others out",
        _RECORD,
        "return one is Mode.EXCLUSIVE or other is Mode.EXCLUSIVE",
        "return one is Mode.EXCLUSIVE and other is Mode.EXCLUSIVE",
    ),
    Mutant(
        "sharers hold together",
        _RECORD,
        "return one is Mode.EXCLUSIVE or other is Mode.EXCLUSIVE",
        "return True",
    ),
    Mutant(
        "a sharer does not hold alone",
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
    Mutant("a job is not one that begins like it", _RECORD, " and by[len(job)] == PART)", ")"),
    Mutant(
        "priority moves a request forward",
        _RECORD,
        "- round(priority * age_s * 1_000_000)",
        "+ round(priority * age_s * 1_000_000)",
    ),
    Mutant(
        "an untouched grant's token is its row's",
        _RECORD,
        "if len(lock.holds) == 1 and not lock.holds[0].token:",
        "if False:",
    ),
    Mutant(
        "sharers have a bound",
        _RULES,
        "if mode is Mode.SHARED and not covered and _is_full(table, name, waiter):",
        "if False:",
    ),
    Mutant(
        "of as many sharers as may be, one that can leave stands for them all",
        _RULES,
        "next(idle, holds[0])",
        "holds[0]",
    ),
    Mutant(
        "who waits for room among sharers watches them all",
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
        "a request is passed so often and no more",
        _RULES,
        "if other.overtaken >= BACKFILL_MAX:",
        "if False:",
    ),
    Mutant(
        "what cannot go lets others pass", _RULES, "if other.overtaken >= BACKFILL_MAX:", "if True:"
    ),
    Mutant(
        "a job overtakes those that wait for it",
        _RULES,
        "if other.id in overtaken or waits_for_job(table, other, waiter.by, unrelated):",
        "if other.id in overtaken:",
    ),
    Mutant(
        "a cycle is seen",
        _RULES,
        "            if within(waiter.by, hold.by):\n                steps = []",
        "            if False:\n                steps = []",
    ),
    Mutant(
        "a cycle is seen through several jobs",
        _RULES,
        "            for next_one in table.waits_of_job(hold.by):\n                if next_one.id not "
        "in led_by:",
        "            for next_one in ():\n                if next_one.id not in led_by:",
    ),
    Mutant(
        "the nearest ahead is watched",
        _RULES,
        "                nearest.append(other)\n",
        "                pass\n",
    ),
    Mutant(
        "a look keeps nobody waiting",
        _RULES,
        "not other.wait_only and conflict(other.mode, waiter.mode) and",
        "conflict(other.mode, waiter.mode) and",
    ),
    # Locks: one step on the table.
    Mutant(
        "a release hands over",
        _TURNS,
        "        self.hand_over(hold.names)\n\n    def release_if_held",
        "\n    def release_if_held",
    ),
    Mutant(
        "one that gives up hands over",
        _TURNS,
        "        self._remove(waiter, kind, **data)\n        self.hand_over(waiter.names)",
        "        self._remove(waiter, kind, **data)",
    ),
    Mutant(
        "with a dead waiter go those of its process alone",
        _TURNS,
        "takewhile(lambda one: one.process == waiter.process, before)",
        "before",
    ),
    Mutant(
        "the waiters of a dead process go together",
        _TURNS,
        "[waiter, *self._neighbours_of_process(waiter)] if dead else [waiter]",
        "[waiter]",
    ),
    Mutant(
        "what is unknown of one waiter takes no other along",
        _TURNS,
        "[waiter, *self._neighbours_of_process(waiter)] if dead else [waiter]",
        "[waiter, *self._neighbours_of_process(waiter)]",
    ),
    Mutant(
        "a reaped grant hands over",
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
        "a verdict is of the process that holds",
        _TURNS,
        "if found is None or found.process != suspect.process:",
        "if found is None:",
    ),
    Mutant(
        "only what may be reclaimed is reaped",
        _TURNS,
        "if not self._clock.reclaimable(found.lease, suspect.liveness, self._tx.now):",
        "if hold is None and not self._clock.reclaimable(found.lease, suspect.liveness, "
        "self._tx.now):",
    ),
    Mutant(
        "a place of the living is not reaped",
        _TURNS,
        "if not self._clock.reclaimable(found.lease, suspect.liveness, self._tx.now):",
        "if hold is not None and not self._clock.reclaimable(found.lease, suspect.liveness, "
        "self._tx.now):",
    ),
    Mutant(
        "who is passed is counted",
        _TURNS,
        "overtaken=other.overtaken + 1",
        "overtaken=other.overtaken",
    ),
    Mutant(
        "a clock stepped back lets nobody overtake",
        _TURNS,
        "if last is not None and last.arrived_at > arrived_at:",
        "if False:",
    ),
    Mutant(
        "nor where priorities differ",
        _TURNS,
        "if newest_at is not None and newest_at > arrived_at:",
        "if False:",
    ),
    Mutant(
        "a lease begins with the grant",
        _TURNS,
        "lease=leases.grant(self._tx.now, ttl_s, explicit=explicit),",
        "lease=waiter.lease,",
    ),
    Mutant(
        "a grant that was waited for is journalled",
        _TURNS,
        "contended = waited or waits_elsewhere or any(lock.holds or lock.waited for lock in locks)",
        "contended = waits_elsewhere",
    ),
    Mutant(
        "of a cycle that a grant closed one is told",
        _TURNS,
        "while self._heap or self._end_a_cycle():",
        "while self._heap:",
    ),
    Mutant(
        "the youngest of a cycle yields", _TURNS, "youngest = max((step", "youngest = min((step"
    ),
    Mutant(
        "a renewal goes on with the time that was asked for",
        _TURNS,
        "ttl_s = hold.ttl_s if ttl_s is None else ttl_s",
        "ttl_s = ttl_s",
    ),
    Mutant(
        "those behind a request that leaves are woken",
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
        "a set is entered under each name",
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
        "a resource knows that it is waited for",
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
    # Locks: asking, waiting, holding.
    Mutant(
        "a quick grant takes a whole set or nothing",
        _ACQUISITION,
        "items = [(name, lock) for name in names]",
        "items = [(name, lock) for name in names[:1]]",
    ),
    Mutant(
        "what could not be withdrawn is tried again later",
        _CONTEXT,
        "unfinished=lambda: bool(self.withdrawals),",
        "",
    ),
    Mutant(
        "a release frees what was touched too", _LOCKS, "if freed < len(grant.taken):", "if False:"
    ),
    Mutant(
        "a forked child releases nothing of its parent",
        _LOCKS,
        'if grant.gone == "released" or grant.pid != os.getpid():',
        'if grant.gone == "released":',
    ),
    Mutant(
        "a lost grant is told at the end of its block",
        _LOCKS,
        'if not self.release(grant) and grant.gone == "lost" and raising:',
        "if not self.release(grant) and False:",
    ),
    Mutant(
        "a free leaves other jobs alone",
        _TURNS,
        "                if hold.by == by:\n                    freed[name]",
        "                if True:\n                    freed[name]",
    ),
    Mutant(
        "a grant that was lost is not suspended",
        _LOCKS,
        "            # After `listen`: a loss is seen here, or notified.\n            "
        "self.check(grant)\n",
        "",
    ),
    Mutant(
        "a grant that somebody must renew is not suspended",
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
        "the loss of a resumed grant is heard",
        _LOCKS,
        "        self._context.resume_ids(saved.id)\n",
        "",
    ),
]
