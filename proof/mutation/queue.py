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
    Mutant("the length of a queue is bounded", _LINE, "if depth >= self._depth_max:", "if False:"),
    Mutant(
        "an idempotency key names one request",
        _LINE,
        "if (known := self.known(draft)) is not None:",
        "if False:",
    ),
    Mutant(
        "a key is refused for another request",
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
    Mutant("a change of a claim needs its token", _LINE, " or request.token != token:", ":"),
    Mutant(
        "only a waiting request can be cancelled",
        _LINE,
        "if request.state is not RequestState.ACCEPTED:",
        "if False:",
    ),
    Mutant("a token ends with its claim", _LINE, 'changes["token"] = None', "pass"),
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
        "every change wakes those that wait for the queue",
        _LINE,
        "        self._changed = True\n        self._express_changed",
        "        self._express_changed",
    ),
    Mutant(
        "an express change wakes those that wait for express requests",
        _LINE,
        "self._express_changed or request.express",
        "self._express_changed",
    ),
    Mutant(
        "the number of waiting requests is counted",
        _LINE,
        "accepted=self.head.accepted + waits,",
        "accepted=self.head.accepted,",
    ),
    Mutant(
        "the number of running requests is counted",
        _LINE,
        "running=self.head.running + runs,",
        "running=self.head.running,",
    ),
    Mutant(
        "only requests of an earlier epoch are stale",
        _LINE,
        "if one.epoch < epoch]",
        "if one.epoch <= epoch]",
    ),
    Mutant(
        "a waiting request is never trimmed",
        _LINE,
        "oldest = in_order(self._tx, self._queue, ENDED, limit",
        "oldest = in_order(self._tx, self._queue, RequestState, limit",
    ),
    Mutant(
        "trimming keeps young requests", _LINE, "(dropped >= ended - keep and not old)", "not old"
    ),
    Mutant(
        "the last finished requests are kept at any age",
        _LINE,
        "old = dropped < ended - keep_least and at",
        "old = at",
    ),
    Mutant(
        "a request that ended within a day is not pruned",
        _LINE,
        "if (spare_s and at >= spared) or (",
        "if (",
    ),
    Mutant(
        "requests are in order of arrival",
        _LINE,
        "key=lambda request: request.arrival)",
        "key=lambda request: request.request_id)",
    ),
    Mutant("a queue of depth zero is refused", _QUEUE, "if depth_max < 1:", "if False:"),
    Mutant(
        "a refusal in a shared commit affects one request",
        _GATEWAY,
        "except (errors.Refused, errors.Unavailable, errors.Corrupt) as error:",
        "except (errors.Unavailable, errors.Corrupt) as error:",
    ),
    Mutant(
        "a finished request stays finished",
        _REQUEST,
        "RequestState.COMPLETED: frozenset(),",
        "RequestState.COMPLETED: frozenset({RequestState.FAILED}),",
    ),
]
