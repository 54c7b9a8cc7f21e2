"""Rules of lock requests, waits, durable grants and upkeep, each with a way to break it."""

from proof.mutation.locks import LOCK_TESTS
from proof.mutation.mutant import Mutant

_ASKING = "primitives/locks/acquisition.py"
_TURNS = "primitives/locks/transaction.py"
_REQUEST = "primitives/locks/request.py"
_WAITING = "primitives/locks/wait.py"
_MANAGER = "primitives/locks/manager.py"
_LASTING = "primitives/locks/grant.py"
_STATISTICS = "primitives/locks/statistics.py"
_CONTEXT = "primitives/locks/context.py"

TESTS = dict.fromkeys(
    (_ASKING, _TURNS, _REQUEST, _WAITING, _MANAGER, _LASTING, _STATISTICS, _CONTEXT),
    LOCK_TESTS,
)

MUTANTS = [
    # Locks: requests, waits, grants.
    Mutant(
        "an expired hold of the same job is not re-entered",
        _REQUEST,
        "            if self._clock.reclaimable(hold.lease, Liveness.ALIVE, now)\n            or (",
        "            if (",
    ),
    Mutant(
        "a hold of a dead process of the same job is not re-entered",
        _REQUEST,
        "            or (hold.process not in (None, this) and hold.id not in self.verified)\n",
        "",
    ),
    Mutant(
        "a part lost during the wait is requested again",
        _ASKING,
        "elif isinstance(answer, Granted) and self._own_hold_ended(answer):",
        "elif False:",
    ),
    Mutant(
        "a cycle through a dead process is no deadlock",
        _REQUEST,
        "return Unverified(involved) if involved else Deadlocked(transaction.refuse(found))",
        "return Deadlocked(transaction.refuse(found))",
    ),
    Mutant(
        "a request that gives up leaves the queue",
        _REQUEST,
        "            transaction.time_out(answer.waiter)\n",
        "            pass\n",
    ),
    Mutant(
        "an interrupted wait leaves no request behind",
        _ASKING,
        "            self._withdraw(later=isinstance(error, LockTimeout))\n            if self._explain",
        "            if self._explain",
    ),
    Mutant(
        "a wait is refused only after a second check of an expired holder",
        _ASKING,
        "elif not self._reap(suspects)[0] and answer.ahead == before:",
        "elif not self._reap(suspects)[0]:",
    ),
    Mutant(
        "a waiter renews its place",
        _ASKING,
        "                if self._next_refresh.passed():",
        "                if False:",
    ),
    Mutant(
        "a death that a pidfd reports counts",
        _WAITING,
        "self._liveness[one.id] = Liveness.DEAD if alone",
        "self._liveness[one.id] = Liveness.ALIVE if alone",
    ),
    Mutant(
        "a waiter wakes when a lease expires",
        _WAITING,
        "return max(min(ends), _LATER_S) + _LATER_S",
        "return None",
    ),
    Mutant(
        "a holder without a process is unknown",
        _WAITING,
        "            return Liveness.UNKNOWN\n        return probe",
        "            return Liveness.DEAD\n        return probe",
    ),
    Mutant(
        "a grant without a process needs a TTL",
        _REQUEST,
        "leases.check_claim_end(process, ttl_s)",
        "pass",
    ),
    Mutant(
        "priorities are bounded",
        _REQUEST,
        "if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:",
        "if False:",
    ),
    Mutant(
        "a name that is given twice counts once",
        _REQUEST,
        "tuple(dict.fromkeys(names))",
        "tuple(names)",
    ),
    Mutant("a TTL is bounded", _REQUEST, "not 0 < ttl_s <= LOCK_TTL_MAX_S", "not 0 < ttl_s"),
    Mutant(
        "a waiter reports a long wait once",
        _ASKING,
        "                    self._report = Deadline(None)\n",
        "",
    ),
    Mutant(
        "an expired token is not in force",
        _MANAGER,
        "if any(hold.token == token and not clock.reclaimable(hold.lease, Liveness.ALIVE, now) "
        "for hold in holds):",
        "if any(hold.token == token for hold in holds):",
    ),
    Mutant(
        "only the grant's own token is in force",
        _MANAGER,
        "if any(hold.token == token and not clock.reclaimable(hold.lease, Liveness.ALIVE, now) "
        "for hold in holds):",
        "if any(not clock.reclaimable(hold.lease, Liveness.ALIVE, now) for hold in holds):",
    ),
    Mutant(
        "an expired grant cannot be renewed",
        _TURNS,
        "        if self.is_expired(hold):\n",
        "        if False:\n",
    ),
    Mutant(
        "a kick of one job takes from that job alone",
        _TURNS,
        "self.table.lock(name).holds if by in (None, hold.by)]",
        "self.table.lock(name).holds]",
    ),
    Mutant(
        "a kick lets the next waiter go",
        _TURNS,
        "        self.hand_over([other for hold in holds for other in hold.names])\n",
        "",
    ),
    Mutant(
        "a grant without a process survives a reboot",
        _LASTING,
        "lambda tx: tx.put(LASTING_GRANTS, hold.id, copy),",
        "lambda tx: None,",
    ),
    Mutant(
        "a released grant does not come back after a reboot",
        _LASTING,
        "        if hold.process is None:\n            self.delete(hold.id, timeout_s)",
        "        pass",
    ),
    Mutant(
        "an expired grant does not come back after a reboot",
        _LASTING,
        "if hold.lease.fresh(tx.now) and not any(",
        "if not any(",
    ),
    Mutant(
        "of two conflicting copies one comes back",
        _LASTING,
        "if hold.lease.fresh(tx.now) and not any(conflict(hold.mode, other.mode) for other in "
        "held):",
        "if hold.lease.fresh(tx.now):",
    ),
    Mutant(
        "of two conflicting copies the newer comes back",
        _LASTING,
        "key=lambda hold: -hold.token)",
        "key=lambda hold: hold.token)",
    ),
    Mutant(
        "a grant with a TTL is not renewed in the background",
        _CONTEXT,
        "if hold is None or hold.lease.explicit:",
        "if hold is None:",
    ),
    Mutant(
        "a process learns which grants are gone",
        _CONTEXT,
        "for grant in grants if _lacks_names(table, tokens[grant.id])",
        "for grant in grants if False",
    ),
    Mutant(
        "the rest of a partly released grant is renewed",
        _CONTEXT,
        "return [grant for grant, left in incomplete if not left]",
        "return [grant for grant, _ in incomplete]",
    ),
    Mutant(
        "names that a job releases do not count as lost",
        _CONTEXT,
        "if left and self.keeper.keeps(grant) and grant.tokens == tokens[grant.id]:",
        "if left:",
    ),
    Mutant(
        "the number of resources with counts is bounded",
        _STATISTICS,
        "if room <= 0:",
        "if False:",
    ),
    Mutant(
        "counts that could not be stored are kept",
        _STATISTICS,
        "                    self._counts |= taken\n",
        "                    pass\n",
    ),
    Mutant(
        "a request for a dead process is not renewed by its requester",
        _CONTEXT,
        "one is not None and self._probe(one) is not Liveness.DEAD",
        "one is not None",
    ),
    Mutant(
        "only an unread answer is cleared away",
        _CONTEXT,
        "(found := tx.get(LOCK_WAITS, row.key)) and found.revision == row.revision",
        "tx.get(LOCK_WAITS, row.key)",
    ),
]
