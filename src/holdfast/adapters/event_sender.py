"""Takes the events that jobs keep to their brokers, at once or in the background, and takes note of
those that arrived.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

from holdfast.adapters.mqtt import Publisher
from holdfast.domains.jobs.broker_address import Reach, reach_of, was_chosen
from holdfast.domains.jobs.event_stream import JobEvents, Unsent
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import BrokerUnavailable, HoldfastError, InvalidValue
from holdfast.kernel.limits import BROKER_BACKOFF_MAX_S

_log = logging.getLogger("holdfast.jobs")
_FIRST_PAUSE_S = 0.5


class Courier:
    """Sends kept events, those of a job in their order. Not for several threads at once.

    An event may be sent twice, as when this is killed before it took note; whoever gets it knows it
    by its number.
    """

    def __init__(self, events: JobEvents, environment: Mapping[str, str] | None = None) -> None:
        self._events = events
        self._environment = os.environ if environment is None else environment
        self._open: dict[Reach, Publisher] = {}
        self._away: dict[Reach, BrokerUnavailable] = {}

    def send(self, job_ids: Iterable[str] | None = None, *, pass_by: bool = False) -> int:
        """Send what waits, of these jobs or of all, and return how many that were. `pass_by` asks
        no broker that was away when it was last asked: each try takes as long as a broker has to
        answer.

        Raises BrokerUnavailable when a broker cannot be used, and otherwise InvalidValue when a job
        has a topic that nothing can be sent to: after what could be sent elsewhere was. Both tell
        in `sent` how many that were; the rest goes on waiting. `chosen` is false when all that is
        away is the local broker, which nobody spoke of.
        """
        outcome = _Outcome(self._away if pass_by else {})
        for job_id in [None] if job_ids is None else job_ids:
            for page in self._events.unsent_pages(job_id):
                self._send_some(page, outcome)
        chosen = [
            error for reach, error in outcome.away.items() if was_chosen(reach, self._environment)
        ]
        failed = next(iter([*chosen, *outcome.away.values()]), None) or outcome.unfit
        if failed is not None:
            known = {"chosen": bool(chosen)} if outcome.away else {}
            raise type(failed)(failed.message, **failed.fields, **known, sent=outcome.sent)
        return outcome.sent

    def _send_some(self, waiting: Sequence[Unsent], outcome: "_Outcome") -> None:
        by_reach = sorted(
            ((reach_of(one.job.broker, self._environment), one) for one in waiting), key=self._place
        )
        for reach, some in groupby(by_reach, key=lambda pair: pair[0]):
            if reach in outcome.passed_by:
                outcome.away[reach] = outcome.passed_by[reach]
            # Tried once: behind it may be the events of others.
            if reach not in outcome.away:
                try:
                    self._send(reach, [one for _, one in some], outcome)
                    self._away.pop(reach, None)
                except BrokerUnavailable as error:
                    outcome.away[reach] = self._away[reach] = error

    def _place(self, pair: tuple[Reach, Unsent]) -> tuple[bool, str, int, str, str, int]:
        """Those last whose broker was away, since that takes long to find out."""
        reach, one = pair
        return (
            reach in self._away,
            reach.host,
            reach.port,
            repr(hash(reach)),
            one.event.job_id,
            one.event.seq,
        )

    def close(self) -> None:
        """Disconnect from every broker."""
        while self._open:
            self._open.popitem()[1].close()

    def _send(self, reach: Reach, waiting: Sequence[Unsent], outcome: "_Outcome") -> None:
        arrived = []
        try:
            if reach not in self._open:
                self._open[reach] = Publisher(reach)
            for job, event in waiting:
                try:
                    self._open[reach].send(job.events_topic, to_json(event))
                except InvalidValue as error:
                    # Another program's record may name such a topic; the events of other jobs go
                    # out all the same.
                    _log.warning(
                        "event kept and not sent job=%s seq=%d: %s",
                        job.job_id,
                        event.seq,
                        error.message,
                    )
                    outcome.unfit = outcome.unfit or _unfit(job.job_id, error)
                else:
                    arrived.append(event)
        except BrokerUnavailable:
            if reach in self._open:
                self._open.pop(reach).close()
            raise
        finally:
            self._events.sent(arrived)
            outcome.sent += len(arrived)


class _Outcome:
    """What has come of sending so far."""

    def __init__(self, passed_by: Mapping[Reach, BrokerUnavailable]) -> None:
        self.passed_by = dict(passed_by)
        self.sent = 0
        self.away: dict[Reach, BrokerUnavailable] = {}
        self.unfit: InvalidValue | None = None


class Errand:
    """A courier in a thread: whoever keeps an event wakes it and goes on. While a broker is away it
    tries again, with longer and longer pauses, and says so once, if anybody chose that broker;
    events for others go out meanwhile.
    """

    def __init__(self, courier: Courier, *, complain: Callable[[str], None]) -> None:
        self._courier = courier
        self._complain = complain
        self._wanted: set[str | None] = {None}
        """The jobs that have something to be sent; None stands for all."""
        self._condition = threading.Condition()
        self._closing = False
        self._away: set[str] = set()
        self._unfit: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="holdfast-courier", daemon=True)
        self._thread.start()

    def wake(self, job_id: str) -> None:
        """There is an event of this job to be sent."""
        with self._condition:
            self._wanted.add(job_id)
            self._condition.notify()

    def close(self, within_s: float) -> None:
        """Send what can be within this time, and end."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(within_s)

    def _run(self) -> None:
        late: set[str | None] = set()
        pause_s, again_s = _FIRST_PAUSE_S, 0.0
        while True:
            with self._condition:
                left_s = max(again_s - time.monotonic(), 0.0) if late else None
                self._condition.wait_for(lambda: self._wanted or self._closing, left_s)
                wanted, self._wanted = self._wanted, set()
                closing = self._closing
            again = closing or not late or time.monotonic() >= again_s
            if again:
                wanted, late = wanted | late, set()
            if not self._deliver(wanted, pass_by=not again):
                late |= wanted
            if again:
                again_s = time.monotonic() + pause_s
                pause_s = min(2 * pause_s, BROKER_BACKOFF_MAX_S) if late else _FIRST_PAUSE_S
            if closing:
                self._courier.close()
                return

    def _deliver(self, jobs: set[str | None], *, pass_by: bool = False) -> bool:
        """Send what waits of these; False when some of it has to be tried again."""
        try:
            self._courier.send(
                None if None in jobs else [job_id for job_id in jobs if job_id is not None],
                pass_by=pass_by,
            )
        except InvalidValue as error:
            # No later try would go better; those who ask for it by `publish --unsent` are told
            # again.
            if error.message not in self._unfit:
                self._complain(error.message)
            self._unfit.add(error.message)
        except HoldfastError as error:
            who = error.fields.get("broker", error.code)
            if who not in self._away and error.fields.get("chosen", True):
                self._complain(f"{error.message}. Events are kept, and sent when it is back")
            self._away.add(who)
            return False
        if self._away and not pass_by:
            _log.info("the broker is back")
            self._away.clear()
        return True


def _unfit(job_id: str, error: InvalidValue) -> InvalidValue:
    return InvalidValue(
        f"{error.message}. Its events are kept and not sent: give job {job_id} another "
        "topic_prefix where it was registered",
        **error.fields,
        job_id=job_id,
    )
