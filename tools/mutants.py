"""The rules of kernel and primitives, each with a way to break it: a text of the code that is there once, and another for it.

`tests/house/test_mutants.py` holds that each text is there once, so that a rule that moves takes its mutant along.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One rule, broken."""

    rule: str
    file: str
    """Below src/holdfast."""
    text: str
    instead: str


_LEASE, _HOLDER, _TOKEN = "kernel/lease.py", "kernel/holder.py", "kernel/token.py"
_CLOCK, _NAMES, _CODEC, _ORDERING, _SPACE = (
    "kernel/clock.py",
    "kernel/names.py",
    "kernel/codec.py",
    "kernel/ordering.py",
    "kernel/space.py",
)
_JOURNAL, _HOLDS, _RENEWING, _KEEPER = (
    "primitives/journal.py",
    "primitives/holds.py",
    "primitives/renewing.py",
    "primitives/keeper.py",
)
_LINE, _QUEUE, _REQUEST = "primitives/queue/line.py", "primitives/queue/queue.py", "primitives/queue/record.py"
_RULES, _TURNS, _TABLE, _LOCKS = (
    "primitives/locks/rules.py",
    "primitives/locks/turns.py",
    "primitives/locks/table.py",
    "primitives/locks/locks.py",
)
_ASKING, _WAITING, _RECORD, _WISH = (
    "primitives/locks/asking.py",
    "primitives/locks/waiting.py",
    "primitives/locks/record.py",
    "primitives/locks/wish.py",
)
_OVERSIGHT, _LASTING, _STATISTICS, _LOCK_RENEWING = (
    "primitives/locks/oversight.py",
    "primitives/locks/lasting.py",
    "primitives/locks/statistics.py",
    "primitives/locks/renewing.py",
)

TESTS: dict[str, tuple[str, ...]] = {
    _LEASE: ("tests/unit/test_lease.py",),
    _HOLDER: ("tests/unit/test_holder.py",),
    _TOKEN: ("tests/unit/test_token.py",),
    _CLOCK: ("tests/unit/test_clock.py",),
    _NAMES: ("tests/unit/test_names.py",),
    _CODEC: ("tests/unit/test_codec.py",),
    _ORDERING: ("tests/unit/test_ordering.py",),
    _SPACE: ("tests/unit/test_space.py",),
    _JOURNAL: ("tests/unit/test_journal.py",),
    _HOLDS: ("tests/unit/test_holds.py",),
    _RENEWING: ("tests/unit/test_holds.py", "tests/hazards/test_hold_death.py"),
    _KEEPER: (
        "tests/unit/test_lock_rules.py",
        "tests/unit/test_locks_leases.py",
        "tests/unit/test_locks_told.py",
        "tests/unit/test_holds.py",
    ),
    _LINE: ("tests/unit/test_queue.py", "tests/model/test_queue_model.py"),
    _QUEUE: ("tests/unit/test_queue.py",),
    _REQUEST: ("tests/unit/test_queue.py", "tests/model/test_queue_model.py"),
}
"""The tests that must notice, the nearest first. What is not here is of the lock manager."""

LOCK_TESTS = (
    "tests/unit/test_lock_rules.py",
    "tests/unit/test_locks.py",
    "tests/unit/test_locks_order.py",
    "tests/unit/test_locks_leases.py",
    "tests/unit/test_locks_told.py",
    "tests/model/test_lock_cases.py",
)

MUTANTS = [
    # Leases.
    Mutant("a lease is fresh at its last instant", _LEASE, "self.expires_at >= now", "self.expires_at > now"),
    Mutant("a renewal never ends a lease earlier", _LEASE, "max(lease.expires_at, end)", "end"),
    Mutant("a lease that is given a time ends by it", _LEASE, "if explicit and not lease.explicit:", "if False:"),
    Mutant("a dead holder's claim may be taken", _LEASE, "if liveness is Liveness.DEAD:", "if False:"),
    Mutant(
        "a live holder is never reaped for being slow",
        _LEASE,
        "(liveness is Liveness.UNKNOWN or lease.explicit)",
        "True",
    ),
    Mutant("a time that was asked for ends the claim", _LEASE, "Liveness.UNKNOWN or lease.explicit)", "Liveness.UNKNOWN)"),
    Mutant("an unknown holder lives by its lease", _LEASE, "return not lease.fresh(now) and (", "return ("),
    Mutant("a lease is longer than nothing", _LEASE, "if not 0 < ttl_s < ", "if not 0 <= ttl_s < "),
    Mutant("a lease begins at an aware instant", _LEASE, "if now.tzinfo is None:", "if False:"),
    Mutant("a renewal waits until it is worth a write", _LEASE, "_DUE_SHARE = 0.8", "_DUE_SHARE = 2.0"),
    # Holders.
    Mutant("another machine's process is unknown", _HOLDER, "if holder.host_id != here.host_id:", "if False:"),
    Mutant("another boot proves death on an embedded store", _HOLDER, "DEAD if embedded else Liveness.UNKNOWN", "UNKNOWN"),
    Mutant("another boot proves nothing on a database", _HOLDER, "DEAD if embedded else Liveness.UNKNOWN", "DEAD"),
    Mutant("another pid namespace is unknown", _HOLDER, "if holder.pid_ns != here.pid_ns:", "if False:"),
    Mutant("a hidden process is unknown", _HOLDER, "if seen is not None and seen.start_ticks is None:", "if False:"),
    Mutant("a zombie is dead", _HOLDER, "seen.zombie or ", ""),
    Mutant("a pid that is used again is another process", _HOLDER, " or seen.start_ticks != holder.start_ticks:", ":"),
    # Tokens.
    Mutant("an era is beyond the last one", _TOKEN, "max(known + 1, seconds)", "max(known, seconds)"),
    Mutant("an era is beyond what a lost copy began", _TOKEN, "max(known + 1, seconds)", "known + 1"),
    Mutant("a clock stepped back is not believed", _TOKEN, "return known + STRIDE", "return seconds"),
    # Clock and names.
    Mutant("a naive instant is refused", _CLOCK, "if at.utcoffset() is None:", "if False:"),
    Mutant("an instant is written in UTC", _CLOCK, "return at.astimezone(UTC)", "return at"),
    Mutant("an id begins with a letter or digit", _NAMES, '_ID = re.compile(r"[A-Za-z0-9]', '_ID = re.compile(r"[A-Za-z0-9.]'),
    Mutant(
        "an id has a bound",
        _NAMES,
        r'_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}',
        r'_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*',
    ),
    Mutant("an agent's name has no dot", _NAMES, "_AGENT.match(value)", "_ID.match(value)"),
    Mutant("a label has no control characters", _NAMES, r"[^\x00-\x1f\x7f-\x9f", r"[^\x00-\x09\x7f-\x9f"),
    Mutant("two labels never share a path", _NAMES, '_SAFE_IN_PATH = frozenset("', '_SAFE_IN_PATH = frozenset("%'),
    # Records.
    Mutant("unknown fields are refused", _CODEC, ", forbid_unknown_fields=True", ""),
    Mutant("a record with a naive instant is refused", _CODEC, "if type(at) is datetime and at.tzinfo is None:", "if False:"),
    Mutant(
        "a shorter text sorts before a longer one",
        _ORDERING,
        r'if b"\0" in text else text) + b"\0\0")',
        r'if b"\0" in text else text) + b"\xff\xff")',
    ),
    Mutant("a NUL in a text is escaped", _ORDERING, r'text.replace(b"\0", b"\0\xff") if b"\0" in text else text', "text"),
    Mutant("negative numbers sort before others", _ORDERING, "(part + _OFFSET).to_bytes(8", "abs(part).to_bytes(8"),
    Mutant("a span ends with its prefix", _ORDERING, "beyond(prefix) if stop is None", "None if stop is None"),
    Mutant("a space keeps its own model", _SPACE, "if type(record) is not self.model or ", "if "),
    Mutant(
        "what cannot be read again is not written",
        _SPACE,
        "            self._decoder.decode(data)\n        except (msgspec.MsgspecError",
        "        except (msgspec.MsgspecError",
    ),
    Mutant("a record has a bound", _SPACE, "if len(data) > RECORD_BYTES_MAX:", "if False:"),
    Mutant("a newer record is refused", _SPACE, "if version > self.schema_version:", "if False:"),
    Mutant(
        "an older record is upgraded step by step",
        _SPACE,
        "for step in range(version, self.schema_version):",
        "for step in range(version, version + 1):",
    ),
    Mutant(
        "a space has every upgrade",
        _SPACE,
        "if missing := set(range(1, schema_version)) - set(self.upgrades):",
        "if missing := set():",
    ),
    # The journal.
    Mutant("secrets are redacted", _JOURNAL, "if value is not None and _names_a_secret(str(key))", "if False"),
    Mutant("secrets are redacted at any depth", _JOURNAL, "value if type(value) in _SCALARS else redacted(value)", "value"),
    Mutant("secrets in lists are redacted", _JOURNAL, "return [redacted(item) for item in data]", "return list(data)"),
    Mutant("a secret's name is known in any case", _JOURNAL, "key.lower().replace", "key.replace"),
    Mutant("the journal is kept within its bounds", _JOURNAL, "% JOURNAL_TRIM_EVERY == 0:", "% JOURNAL_TRIM_EVERY == -1:"),
    Mutant(
        "a follower goes on behind the last batch",
        _JOURNAL,
        "                    yield batch\n                    cursor = batch.cursor\n                left_s",
        "                    yield batch\n                left_s",
    ),
    # Counted holds.
    Mutant("taking twice is one hold", _HOLDS, "if any(other.by == hold.by for other in holds):", "if False:"),
    Mutant(
        "taking again renews the lease",
        _HOLDS,
        "return tuple(hold if other.by == hold.by else other for other in holds)",
        "return holds",
    ),
    Mutant("a drop takes one holder", _HOLDS, "return tuple(other for other in holds if other.by != by)", "return holds[1:]"),
    Mutant(
        "a dead holder does not count",
        _HOLDS,
        "return tuple(hold for hold in holds if not reclaimable(hold.lease, _liveness(hold, verdicts), now))",
        "return holds",
    ),
    Mutant("a hold without a process needs a time", _HOLDS, "if holder is None and ttl_s is None:", "if False:"),
    Mutant("a hold that was given a time ends by it", _HOLDS, "explicit=ttl_s is not None)", "explicit=False)"),
    Mutant("who holds nothing is told so", _HOLDS, "if len(rest) == len(living_ones):", "if False:"),
    Mutant(
        "the gone are swept by the next change",
        _HOLDS,
        "            if len(rest) < len(before):\n                self._write(tx, subject, rest)\n",
        "",
    ),
    Mutant("a sweep is journalled", _HOLDS, "if gone.by not in left:", "if False:"),
    Mutant(
        "a take is journalled",
        _HOLDS,
        '            self._journal.append(tx, kind="hold.taken", subject=subject, data={"by": by, "count": len(holds)})\n',
        "",
    ),
    Mutant(
        "a hold with a time is not renewed",
        _RENEWING,
        "h.process == mine.process and not h.lease.explicit), None)",
        "h.process == mine.process), None)",
    ),
    Mutant(
        "an empty subject leaves nothing behind",
        _HOLDS,
        "        if holds:\n            tx.put(HOLDS, subject, Held(holds=holds))\n        else:\n            tx.delete(HOLDS, subject)",
        "        tx.put(HOLDS, subject, Held(holds=holds))",
    ),
    Mutant(
        "only one's own hold is renewed", _RENEWING, "h.by == mine.by and h.process == mine.process and", "h.by == mine.by and"
    ),
    Mutant("a hold of a dead process is not renewed", _RENEWING, "is not Liveness.DEAD}", "is not None}"),
    Mutant(
        "a forked child renews nothing of its parent",
        _RENEWING,
        "        if os.getpid() != self._pid:\n            self._begin_process()\n            self._keeper.begin_process()",
        "        pass",
    ),
    # The queue.
    Mutant("a queue has a bound", _LINE, "if depth >= self._depth_max:", "if False:"),
    Mutant("an idempotency key is one request", _LINE, "if (known := self.known(draft)) is not None:", "if False:"),
    Mutant(
        "a key is not used for something else",
        _LINE,
        "if (request.kind, request.payload) != (draft.kind, draft.payload):",
        "if False:",
    ),
    Mutant("one request has the slot", _LINE, "if not express and self.head.slot is not None:", "if False:"),
    Mutant(
        "an express request does not wait for the slot",
        _LINE,
        "if not express and self.head.slot is not None:",
        "if self.head.slot is not None:",
    ),
    Mutant(
        "a request runs only in its epoch", _LINE, '"turn", (self._queue, express, epoch)', '"turn", (self._queue, express)'
    ),
    Mutant(
        "a claim has a token", _LINE, "started_at=self._tx.now, token=self._tx.revision)", "started_at=self._tx.now, token=1)"
    ),
    Mutant("what is said of a claim shows its token", _LINE, " or request.token != token:", ":"),
    Mutant("only what waits can be cancelled", _LINE, "if request.state is not RequestState.ACCEPTED:", "if False:"),
    Mutant("a token is over with its claim", _LINE, 'changes["token"] = None', "pass"),
    Mutant("an end frees the slot", _LINE, "            slot = None\n        self.head", "            pass\n        self.head"),
    Mutant(
        "every step is journalled",
        _LINE,
        'revision = self._journal.append(self._tx, kind=kind, subject=moved.request_id, data={"agent": self._queue, **told})',
        "revision = self._tx.revision",
    ),
    Mutant(
        "every change wakes who waits for the queue",
        _LINE,
        "        self._changed = True\n        self._hurried",
        "        self._hurried",
    ),
    Mutant("an express change wakes who waits for those", _LINE, "self._hurried or request.express", "self._hurried"),
    Mutant("the count of what waits is kept", _LINE, "accepted=self.head.accepted + waits,", "accepted=self.head.accepted,"),
    Mutant("the count of what runs is kept", _LINE, "running=self.head.running + runs,", "running=self.head.running,"),
    Mutant("only what is of an earlier epoch is stale", _LINE, "if row.record.epoch < epoch]", "if row.record.epoch <= epoch]"),
    Mutant(
        "what waits is never trimmed",
        _LINE,
        "oldest = in_order(self._tx, self._queue, ENDED, limit",
        "oldest = in_order(self._tx, self._queue, RequestState, limit",
    ),
    Mutant("trimming keeps what is young", _LINE, "if dropped >= over and request", "if request"),
    Mutant(
        "requests are in order of arrival",
        _LINE,
        "key=lambda request: request.arrival)",
        "key=lambda request: request.request_id)",
    ),
    Mutant("a queue of no depth is refused", _QUEUE, "if depth_max < 1:", "if False:"),
    Mutant(
        "one refusal is not that of all",
        _QUEUE,
        "    except Refused as error:\n        return error",
        "    except Refused:\n        raise",
    ),
    Mutant(
        "what has ended stays ended",
        _REQUEST,
        "RequestState.COMPLETED: frozenset(),",
        "RequestState.COMPLETED: frozenset({RequestState.FAILED}),",
    ),
    # Locks: the rules of turns.
    Mutant(
        "an exclusive holder keeps others out",
        _RECORD,
        "return one is Mode.EXCLUSIVE or other is Mode.EXCLUSIVE",
        "return one is Mode.EXCLUSIVE and other is Mode.EXCLUSIVE",
    ),
    Mutant("sharers hold together", _RECORD, "return one is Mode.EXCLUSIVE or other is Mode.EXCLUSIVE", "return True"),
    Mutant("a sharer does not hold alone", _RECORD, "(self.mode is Mode.EXCLUSIVE or mode is Mode.SHARED) and ", ""),
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
        "an untouched grant's token is its row's", _RECORD, "if len(lock.holds) == 1 and not lock.holds[0].token:", "if False:"
    ),
    Mutant("sharers have a bound", _RULES, "if len(holds) >= LOCK_SHARERS_MAX and mode is Mode.SHARED:", "if False:"),
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
    Mutant("a request is passed so often and no more", _RULES, "if other.passed >= BACKFILL_MAX:", "if False:"),
    Mutant("what cannot go lets others pass", _RULES, "if other.passed >= BACKFILL_MAX:", "if True:"),
    Mutant(
        "whoever waits for a job is passed by it",
        _RULES,
        "if other.id in overtaken or waits_for(table, other, request.by, harmless):",
        "if other.id in overtaken:",
    ),
    Mutant(
        "a cycle is seen",
        _RULES,
        "            if within(request.by, hold.by):\n                steps = []",
        "            if False:\n                steps = []",
    ),
    Mutant(
        "a cycle is seen through several jobs",
        _RULES,
        "            for next_one in table.of_job(hold.by):\n                if next_one.id not in led_by:",
        "            for next_one in ():\n                if next_one.id not in led_by:",
    ),
    Mutant("the nearest ahead is watched", _RULES, "        nearest.append(other)\n", ""),
    Mutant(
        "a look keeps nobody waiting",
        _RULES,
        "if not other.look and conflict(other.mode, request.mode)",
        "if conflict(other.mode, request.mode)",
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
        "        self._remove(request, kind, **data)\n        self.hand_over(request.names)",
        "        self._remove(request, kind, **data)",
    ),
    Mutant(
        "a reaped grant hands over", _TURNS, "        self.hand_over([name for gone in removed for name in gone.names])\n", ""
    ),
    Mutant(
        "whoever is granted something is woken",
        _TURNS,
        "            self._granted(current, overtaken, waited=True)\n            self._tx.notify(current.address)",
        "            self._granted(current, overtaken, waited=True)",
    ),
    Mutant("whoever loses a grant is told", _TURNS, "        self._tx.notify(lost_topic(asker_of(hold.id)))\n", ""),
    Mutant(
        "a verdict is of the process that holds",
        _TURNS,
        "if found is None or found.process != suspect.process:",
        "if found is None:",
    ),
    Mutant(
        "only what may be reclaimed is reaped",
        _TURNS,
        "if hold is not None and leases.reclaimable(hold.lease, suspect.liveness, self._tx.now):",
        "if hold is not None:",
    ),
    Mutant(
        "a place of the living is not reaped",
        _TURNS,
        "elif request is not None and leases.reclaimable(request.lease, suspect.liveness, self._tx.now):",
        "elif request is not None:",
    ),
    Mutant("who is passed is counted", _TURNS, "passed=other.passed + 1", "passed=other.passed"),
    Mutant(
        "a clock stepped back lets nobody overtake",
        _TURNS,
        "if last is not None and last.arrived_at > arrived_at:",
        "if False:",
    ),
    Mutant("nor where priorities differ", _TURNS, "if newest_at is not None and newest_at > arrived_at:", "if False:"),
    Mutant(
        "a lease begins with the grant",
        _TURNS,
        "lease=leases.grant(self._tx.now, ttl_s, explicit=explicit),",
        "lease=request.lease,",
    ),
    Mutant(
        "a grant that was waited for is journalled",
        _TURNS,
        "told = waited or elsewhere or not alone or self._terms.tell_all",
        "told = elsewhere or self._terms.tell_all",
    ),
    Mutant(
        "of a cycle that a grant closed one is told", _TURNS, "while self._heap or self._end_a_cycle():", "while self._heap:"
    ),
    Mutant("the youngest of a cycle yields", _TURNS, "youngest = max((step", "youngest = min((step"),
    Mutant(
        "a renewal goes on with the time that was asked for",
        _TURNS,
        "ttl_s = hold.ttl_s if ttl_s is None else ttl_s",
        "ttl_s = ttl_s",
    ),
    Mutant(
        "those behind a request that leaves are woken",
        _TURNS,
        "            self._neighbours.leave(request)\n        self.table.dequeue(request)",
        "            pass\n        self.table.dequeue(request)",
    ),
    Mutant(
        "a wait that would close a cycle is refused", _TURNS, "if steps := rules.cycle(self.table, request):", "if steps := []:"
    ),
    Mutant(
        "a set is entered under each name",
        _TABLE,
        "        for name in hold.names:\n            self._set(name, (*self.lock(name).holds, hold))",
        "        for name in hold.names[:1]:\n            self._set(name, (*self.lock(name).holds, hold))",
    ),
    Mutant(
        "a free resource has no row",
        _TABLE,
        "            if lock.holds or lock.waited:\n                self.tx.put(LOCKS, name, lock)\n            else:\n                self.tx.delete(LOCKS, name)",
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
        _LOCKS,
        "token = self._store.put_new(LOCKS, [(name, lock) for name in names],",
        "token = self._store.put_new(LOCKS, [(name, lock) for name in names[:1]],",
    ),
    Mutant("a release frees what was touched too", _LOCKS, "if freed < len(grant.taken):", "if False:"),
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
        "an own hold that is over is not entered again",
        _ASKING,
        "            if reclaimable(hold.lease, Liveness.ALIVE, now)\n            or (",
        "            if (",
    ),
    Mutant(
        "an own hold of a dead process is not entered again",
        _ASKING,
        "            or (hold.process not in (None, this) and hold.id not in self._vouched)\n",
        "",
    ),
    Mutant(
        "a part that was lost meanwhile is asked for again",
        _ASKING,
        "elif isinstance(answer, Given) and self._lost_a_part(answer):",
        "elif False:",
    ),
    Mutant(
        "a cycle through the dead is none",
        _ASKING,
        "return Doubt(others) if others else Deadlocked(turns.refuse(found))",
        "return Deadlocked(turns.refuse(found))",
    ),
    Mutant(
        "whoever gives up leaves the queue",
        _ASKING,
        '            turns.leave(answer.request, "lock.timed_out", held_by=sorted({one.by for one in answer.ahead if one.holds}))\n',
        "",
    ),
    Mutant(
        "an interrupted wait leaves nothing",
        _ASKING,
        "            except BaseException:\n                self._withdraw()\n                raise\n        if isinstance(answer, Over)",
        "            except ZeroDivisionError:\n                raise\n        if isinstance(answer, Over)",
    ),
    Mutant(
        "a refusal looks twice at one that was over",
        _ASKING,
        "elif not self._reap(suspects)[0] and answer.ahead == doubted:",
        "elif not self._reap(suspects)[0]:",
    ),
    Mutant(
        "a waiter gives signs of life", _ASKING, "                if self._sign_of_life.passed():", "                if False:"
    ),
    Mutant(
        "a death that a descriptor tells of counts",
        _WAITING,
        "self._known[self._by_fd[fd].id] = Liveness.DEAD",
        "self._known[self._by_fd[fd].id] = Liveness.ALIVE",
    ),
    Mutant(
        "a waiter wakes when a lease runs out",
        _WAITING,
        "return max(min(ends), _LATER_S) + _LATER_S if ends else None",
        "return None",
    ),
    Mutant(
        "who has no process is unknown",
        _WAITING,
        "            return Liveness.UNKNOWN\n        return probe",
        "            return Liveness.DEAD\n        return probe",
    ),
    Mutant("a grant of nobody needs a time", _WISH, "if process is None and ttl_s is None:", "if False:"),
    Mutant("priorities have a bound", _WISH, "if not -LOCK_PRIORITY_MAX <= priority <= LOCK_PRIORITY_MAX:", "if False:"),
    Mutant("a name that is given twice is one", _WISH, "tuple(dict.fromkeys(names))", "tuple(names)"),
    Mutant("a time to live has a bound", _WISH, "not 0 < ttl_s <= LOCK_TTL_MAX_S", "not 0 < ttl_s"),
    Mutant(
        "a token is in force while its time lasts",
        _OVERSIGHT,
        "if any(hold.token == token and not over(hold, now) for hold in holds):",
        "if any(hold.token == token for hold in holds):",
    ),
    Mutant(
        "a token is that of the grant",
        _OVERSIGHT,
        "if any(hold.token == token and not over(hold, now) for hold in holds):",
        "if any(not over(hold, now) for hold in holds):",
    ),
    Mutant(
        "what is over cannot be renewed",
        _OVERSIGHT,
        "    if over(hold, turns.now):\n        return None, ",
        "    if False:\n        return None, ",
    ),
    Mutant("a kick takes from one job when told so", _OVERSIGHT, "if by in (None, hold.by)]", "]"),
    Mutant(
        "a kick hands over", _OVERSIGHT, "            turns.hand_over([other for hold in holds for other in hold.names])\n", ""
    ),
    Mutant(
        "a grant of nobody outlives a reboot",
        _LASTING,
        "self._store.transact(lambda tx, copy=copy: tx.put(LASTING_GRANTS, hold.id, copy), scope=[LASTING_GRANTS])",
        "pass",
    ),
    Mutant(
        "what ended does not come back",
        _LASTING,
        "        if hold.process is None:\n            self.forget(hold.id)",
        "        pass",
    ),
    Mutant("what is over does not come back", _LASTING, "if hold.lease.fresh(tx.now) and not any(", "if not any("),
    Mutant(
        "two that conflict do not both come back",
        _LASTING,
        "if hold.lease.fresh(tx.now) and not any(conflict(hold.mode, other.mode) for other in held):",
        "if hold.lease.fresh(tx.now):",
    ),
    Mutant(
        "of two that conflict the newer comes back", _LASTING, "key=lambda hold: -hold.token)", "key=lambda hold: hold.token)"
    ),
    Mutant(
        "a grant with a time is not renewed by itself",
        _LOCK_RENEWING,
        "if grant.ttl_s is not None or not grant.taken:",
        "if not grant.taken:",
    ),
    Mutant(
        "a process learns which grants are gone",
        _LOCK_RENEWING,
        "[grant for grant in grants if _is_gone(table, grant)],",
        "[],",
    ),
    Mutant("counts of resources have a bound", _STATISTICS, "if row is None and room <= 0:", "if False:"),
    Mutant(
        "counts that could not be added are kept",
        _STATISTICS,
        "                self._tallies |= tallies\n",
        "                pass\n",
    ),
    # The keeper.
    Mutant(
        "of several threads one lets go",
        _KEEPER,
        "return self._held.pop(kept.id, None) is not None",
        "return True if self._held.pop(kept.id, None) else True",
    ),
    Mutant("what is gone is told to its holder", _KEEPER, "                    one.lose()\n", "                    pass\n"),
    Mutant("what is due is renewed", _KEEPER, "now_s - self._last_s(one) >= self._renew_every_s]", "False]"),
]
