"""Rules of asking for locks, waiting, lasting and looking after them, each with a way to break
it.
"""

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
    # Locks: asking, waiting, holding.
    Mutant(
        "an own hold that is over is not entered again",
        _REQUEST,
        "            if self._clock.reclaimable(hold.lease, Liveness.ALIVE, now)\n            or (",
        "            if (",
    ),
    Mutant(
        "an own hold of a dead process is not entered again",
        _REQUEST,
        "            or (hold.process not in (None, this) and hold.id not in self.verified)\n",
        "",
    ),
    Mutant(
        "a part that was lost meanwhile is asked for again",
        _ASKING,
        "elif isinstance(answer, Granted) and self._own_hold_ended(answer):",
        "elif False:",
    ),
    Mutant(
        "a cycle through the dead is none",
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
        "an interrupted wait leaves nothing",
        _ASKING,
        "            self._withdraw(later=isinstance(error, LockTimeout))\n            if self._explain",
        "            if self._explain",
    ),
    Mutant(
        "a refusal looks twice at one that was over",
        _ASKING,
        "elif not self._reap(suspects)[0] and answer.ahead == doubted:",
        "elif not self._reap(suspects)[0]:",
    ),
    Mutant(
        "a waiter gives signs of life",
        _ASKING,
        "                if self._next_refresh.passed():",
        "                if False:",
    ),
    Mutant(
        "a death that a descriptor tells of counts",
        _WAITING,
        "self._liveness[one.id] = Liveness.DEAD if alone",
        "self._liveness[one.id] = Liveness.ALIVE if alone",
    ),
    Mutant(
        "a waiter wakes when a lease runs out",
        _WAITING,
        "return max(min(ends), _LATER_S) + _LATER_S",
        "return None",
    ),
    Mutant(
        "who has no process is unknown",
        _WAITING,
        "            return Liveness.UNKNOWN\n        return probe",
        "            return Liveness.DEAD\n        return probe",
    ),
    Mutant(
        "a grant of nobody needs a time",
        _REQUEST,
        "leases.check_claim_end(process, ttl_s)",
        "pass",
    ),
    Mutant(
        "priorities have a bound",
        _REQUEST,
        "if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:",
        "if False:",
    ),
    Mutant(
        "a name that is given twice is one", _REQUEST, "tuple(dict.fromkeys(names))", "tuple(names)"
    ),
    Mutant(
        "a time to live has a bound", _REQUEST, "not 0 < ttl_s <= LOCK_TTL_MAX_S", "not 0 < ttl_s"
    ),
    Mutant(
        "a token is in force while its time lasts",
        _MANAGER,
        "if any(hold.token == token and not clock.reclaimable(hold.lease, Liveness.ALIVE, now) "
        "for hold in holds):",
        "if any(hold.token == token for hold in holds):",
    ),
    Mutant(
        "a token is that of the grant",
        _MANAGER,
        "if any(hold.token == token and not clock.reclaimable(hold.lease, Liveness.ALIVE, now) "
        "for hold in holds):",
        "if any(not clock.reclaimable(hold.lease, Liveness.ALIVE, now) for hold in holds):",
    ),
    Mutant(
        "what is over cannot be renewed",
        _TURNS,
        "        if self.is_expired(hold):\n",
        "        if False:\n",
    ),
    Mutant(
        "a kick takes from one job when told so",
        _TURNS,
        "self.table.lock(name).holds if by in (None, hold.by)]",
        "self.table.lock(name).holds]",
    ),
    Mutant(
        "a kick hands over",
        _TURNS,
        "        self.hand_over([other for hold in holds for other in hold.names])\n",
        "",
    ),
    Mutant(
        "a grant of nobody outlives a reboot",
        _LASTING,
        "lambda tx: tx.put(LASTING_GRANTS, hold.id, copy),",
        "lambda tx: None,",
    ),
    Mutant(
        "what ended does not come back",
        _LASTING,
        "        if hold.process is None:\n            self.delete(hold.id, timeout_s)",
        "        pass",
    ),
    Mutant(
        "what is over does not come back",
        _LASTING,
        "if hold.lease.fresh(tx.now) and not any(",
        "if not any(",
    ),
    Mutant(
        "two that conflict do not both come back",
        _LASTING,
        "if hold.lease.fresh(tx.now) and not any(conflict(hold.mode, other.mode) for other in "
        "held):",
        "if hold.lease.fresh(tx.now):",
    ),
    Mutant(
        "of two that conflict the newer comes back",
        _LASTING,
        "key=lambda hold: -hold.token)",
        "key=lambda hold: hold.token)",
    ),
    Mutant(
        "a grant with a time is not renewed by itself",
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
        "what is left of a grant is kept alive",
        _CONTEXT,
        "return [grant for grant, left in incomplete if not left]",
        "return [grant for grant, _ in incomplete]",
    ),
    Mutant(
        "what a job lets go of was not taken away",
        _CONTEXT,
        "if left and self.keeper.keeps(grant) and grant.tokens == tokens[grant.id]:",
        "if left:",
    ),
    Mutant(
        "counts of resources have a bound",
        _STATISTICS,
        "if room <= 0:",
        "if False:",
    ),
    Mutant(
        "counts that could not be added are kept",
        _STATISTICS,
        "                    self._counts |= taken\n",
        "                    pass\n",
    ),
    Mutant(
        "a dead process gets no sign of life from the one that asked for it",
        _CONTEXT,
        "one is not None and self._probe(one) is not Liveness.DEAD",
        "one is not None",
    ),
    Mutant(
        "only what is still unread is cleared away",
        _CONTEXT,
        "(found := tx.get(LOCK_WAITS, row.key)) and found.revision == row.revision",
        "tx.get(LOCK_WAITS, row.key)",
    ),
]
