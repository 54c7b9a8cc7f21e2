"""Rules of queues, each with a way to break it."""

from proof.mutation.mutant import Mutant

_LINE = "primitives/queue/transaction.py"
_QUEUE = "primitives/queue/queue.py"
_REQUEST = "primitives/queue/records.py"
_GATEWAY = "domains/gateway/gateway.py"

TESTS: dict[str, tuple[str, ...]] = {
    _LINE: (
        "tests/unit/test_queue.py",
        "tests/model/test_queue_model.py",
    ),
    _QUEUE: ("tests/unit/test_queue.py",),
    _GATEWAY: ("tests/unit/test_gateway.py",),
    _REQUEST: (
        "tests/unit/test_queue.py",
        "tests/model/test_queue_model.py",
    ),
}

MUTANTS = [
    # The queue.
    Mutant("a queue has a bound", _LINE, "if depth >= self._depth_max:", "if False:"),
    Mutant(
        "an idempotency key is one request",
        _LINE,
        "if (known := self.known(draft)) is not None:",
        "if False:",
    ),
    Mutant(
        "a key is not used for something else",
        _LINE,
        "if (request.kind, request.payload) != (draft.kind, draft.payload):",
        "if False:",
    ),
    Mutant(
        "one request has the slot",
        _LINE,
        "if not express and self.head.slot is not None:",
        "if False:",
    ),
    Mutant(
        "an express request does not wait for the slot",
        _LINE,
        "if not express and self.head.slot is not None:",
        "if self.head.slot is not None:",
    ),
    Mutant(
        "a request runs only in its epoch",
        _LINE,
        '"turn", (self._queue, express, epoch)',
        '"turn", (self._queue, express)',
    ),
    Mutant(
        "a claim has a token",
        _LINE,
        "started_at=self._tx.now, token=self._tx.revision)",
        "started_at=self._tx.now, token=1)",
    ),
    Mutant("what is said of a claim shows its token", _LINE, " or request.token != token:", ":"),
    Mutant(
        "only what waits can be cancelled",
        _LINE,
        "if request.state is not RequestState.ACCEPTED:",
        "if False:",
    ),
    Mutant("a token is over with its claim", _LINE, 'changes["token"] = None', "pass"),
    Mutant(
        "an end frees the slot",
        _LINE,
        "            slot = None\n        self.head",
        "            pass\n        self.head",
    ),
    Mutant(
        "every step is journalled",
        _LINE,
        'revision = self._journal.append(self._tx, kind=f"request.{word}", '
        "subject=moved.request_id, "
        'data={"agent": self._queue, **data})',
        "revision = self._tx.revision",
    ),
    Mutant(
        "every change wakes who waits for the queue",
        _LINE,
        "        self._changed = True\n        self._express_changed",
        "        self._express_changed",
    ),
    Mutant(
        "an express change wakes who waits for those",
        _LINE,
        "self._express_changed or request.express",
        "self._express_changed",
    ),
    Mutant(
        "the count of what waits is kept",
        _LINE,
        "accepted=self.head.accepted + waits,",
        "accepted=self.head.accepted,",
    ),
    Mutant(
        "the count of what runs is kept",
        _LINE,
        "running=self.head.running + runs,",
        "running=self.head.running,",
    ),
    Mutant(
        "only what is of an earlier epoch is stale",
        _LINE,
        "if one.epoch < epoch]",
        "if one.epoch <= epoch]",
    ),
    Mutant(
        "what waits is never trimmed",
        _LINE,
        "oldest = in_order(self._tx, self._queue, ENDED, limit",
        "oldest = in_order(self._tx, self._queue, RequestState, limit",
    ),
    Mutant(
        "trimming keeps what is young", _LINE, "(dropped >= ended - keep and not old)", "not old"
    ),
    Mutant(
        "the last that ended are kept at any age",
        _LINE,
        "old = dropped < ended - keep_least and at",
        "old = at",
    ),
    Mutant(
        "what ended within a day is not pruned", _LINE, "if (spare_s and at >= spared) or (", "if ("
    ),
    Mutant(
        "requests are in order of arrival",
        _LINE,
        "key=lambda request: request.arrival)",
        "key=lambda request: request.request_id)",
    ),
    Mutant("a queue of no depth is refused", _QUEUE, "if depth_max < 1:", "if False:"),
    Mutant(
        "one refusal is not that of all",
        _GATEWAY,
        "except (errors.Refused, errors.Unavailable, errors.Corrupt) as error:",
        "except (errors.Unavailable, errors.Corrupt) as error:",
    ),
    Mutant(
        "what has ended stays ended",
        _REQUEST,
        "RequestState.COMPLETED: frozenset(),",
        "RequestState.COMPLETED: frozenset({RequestState.FAILED}),",
    ),
]
