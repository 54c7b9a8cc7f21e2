"""Rules of the journal, of counted holds and of background renewal, each with a way to break it."""

from proof.mutation.mutant import Mutant

_JOURNAL = "primitives/journal.py"
_HOLDS = "primitives/holds.py"
_RENEWING = "primitives/holds.py"
_KEEPER = "primitives/renewal.py"

TESTS: dict[str, tuple[str, ...]] = {
    _JOURNAL: ("tests/unit/test_journal.py",),
    _HOLDS: ("tests/unit/test_holds.py",),
    _RENEWING: (
        "tests/unit/test_holds.py",
        "tests/hazards/test_hold_death.py",
    ),
    _KEEPER: (
        "tests/unit/test_lock_rules.py",
        "tests/unit/test_locks_leases.py",
        "tests/unit/test_locks_events.py",
        "tests/unit/test_holds.py",
    ),
}

MUTANTS = [
    # The journal.
    Mutant(
        "secrets are redacted",
        _JOURNAL,
        "if value is not None and _names_a_secret(str(key))",
        "if False",
    ),
    Mutant(
        "secrets are redacted at any depth",
        _JOURNAL,
        "value if type(value) in _SCALARS else redacted(value)",
        "value",
    ),
    Mutant(
        "secrets in lists are redacted",
        _JOURNAL,
        "return [redacted(item) for item in data]",
        "return list(data)",
    ),
    Mutant(
        "a secret is recognised in upper and lower case",
        _JOURNAL,
        "key.lower().replace",
        "key.replace",
    ),
    Mutant(
        "the journal prunes itself to its bounds",
        _JOURNAL,
        "% JOURNAL_TRIM_EVERY == 0:",
        "% JOURNAL_TRIM_EVERY == -1:",
    ),
    Mutant(
        "a follower continues after the last batch",
        _JOURNAL,
        "                    yield batch\n                    cursor = batch.cursor\n             "
        "   left_s",
        "                    yield batch\n                left_s",
    ),
    # Counted holds.
    Mutant(
        "taking twice is one hold",
        _HOLDS,
        "if any(other.by == hold.by for other in holds):",
        "if False:",
    ),
    Mutant(
        "taking again renews the lease",
        _HOLDS,
        "return tuple(hold if other.by == hold.by else other for other in holds)",
        "return holds",
    ),
    Mutant(
        "a drop takes one holder",
        _HOLDS,
        "return tuple(other for other in holds if other.by != by)",
        "return holds[1:]",
    ),
    Mutant(
        "a dead holder does not count",
        _HOLDS,
        "return tuple(hold for hold in holds if not steady.reclaimable(hold.lease, "
        "liveness(hold), now))",
        "return holds",
    ),
    Mutant(
        "a hold without a process needs a TTL",
        _HOLDS,
        "leases.check_claim_end(process, ttl_s)",
        "pass",
    ),
    Mutant(
        "a hold that gets a TTL ends by it",
        _HOLDS,
        "explicit=ttl_s is not None)",
        "explicit=False)",
    ),
    Mutant(
        "a drop by a job that holds nothing is refused",
        _HOLDS,
        "if len(rest) == len(present):",
        "if False:",
    ),
    Mutant(
        "the next change sweeps dead holders",
        _HOLDS,
        "            if len(rest) < len(before):\n                self._write(tx, subject, rest)\n",
        "",
    ),
    Mutant("a sweep is journalled", _HOLDS, "if gone.by not in left:", "if False:"),
    Mutant(
        "a take is journalled",
        _HOLDS,
        'self._journal.append(tx, kind="hold.taken", subject=subject, data=data)',
        "pass",
    ),
    Mutant(
        "a hold with a TTL is not renewed",
        _RENEWING,
        "hold.process == kept.process and not hold.lease.explicit:",
        "hold.process == kept.process:",
    ),
    Mutant(
        "an empty subject leaves nothing behind",
        _HOLDS,
        "        if holds:\n            tx.put(HOLDS, subject, HeldSubject(holds=holds))\n        "
        "else:\n            tx.delete(HOLDS, subject)",
        "        tx.put(HOLDS, subject, HeldSubject(holds=holds))",
    ),
    Mutant(
        "a process renews only its own holds",
        _RENEWING,
        "hold.by == kept.by and hold.process == kept.process and",
        "hold.by == kept.by and",
    ),
    Mutant(
        "a hold of a dead process is not renewed",
        _RENEWING,
        "is not Liveness.DEAD}",
        "is not None}",
    ),
    Mutant(
        "a forked child renews nothing of its parent",
        _RENEWING,
        "        if os.getpid() != self._pid:\n            self._start_process()\n            "
        "self._keeper.begin_process()",
        "        pass",
    ),
    # Background renewal.
    Mutant(
        "only one of several threads releases a grant",
        _KEEPER,
        "return self._held.pop(kept.id, None) is not None",
        "return True if self._held.pop(kept.id, None) else True",
    ),
    Mutant(
        "a holder is notified when its claim is gone",
        _KEEPER,
        "            found.lose()\n",
        "            pass\n",
    ),
    Mutant(
        "a claim is renewed when it is due",
        _KEEPER,
        "now_s - self._renewed_s.get(one.id, one.since_s) >= self._renew_every_s\n",
        "False\n",
    ),
]
