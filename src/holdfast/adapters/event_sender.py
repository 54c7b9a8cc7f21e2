"""Sends the stored events of jobs to their brokers, at once or in the background."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

from holdfast.adapters.mqtt import Publisher
from holdfast.domains.jobs.broker_address import BrokerAddress, address_of, was_chosen
from holdfast.domains.jobs.event_stream import JobEvents, Unsent
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import BrokerUnavailable, HoldfastError, InvalidValue
from holdfast.kernel.limits import BROKER_BACKOFF_MAX_S

_log = logging.getLogger("holdfast.jobs")
_FIRST_PAUSE_S = 0.5


class EventSender:
    """Sends stored events, those of a job in their order. Not for several threads at once. An event
    may be sent twice, as when this is killed before it recorded that; its receiver knows its
    number.
    """

    def __init__(self, events: JobEvents, environment: Mapping[str, str] | None = None) -> None:
        self._events = events
        self._environment = os.environ if environment is None else environment
        self._open: dict[BrokerAddress, Publisher] = {}
        self._away: dict[BrokerAddress, BrokerUnavailable] = {}

    def send(self, job_ids: Iterable[str] | None = None, *, pass_by: bool = False) -> int:
        """Send what waits, of these jobs or of all, and return how many events that were. With
        `pass_by`, brokers that were away at the last try are not asked: each try may take as long
        as a broker has to answer.

        Raises BrokerUnavailable when a broker cannot be used, or else InvalidValue when nothing can
        be sent to a job's topic, after everything else was sent. Their `sent` is how many events
        that were; the rest goes on waiting. `chosen` is false when only the local broker is away,
        and nobody chose it.
        """
        outcome = _Outcome(self._away if pass_by else {})
        for job_id in [None] if job_ids is None else job_ids:
            for page in self._events.unsent_pages(job_id):
                self._send_page(page, outcome)
        chosen = [
            error
            for address, error in outcome.away.items()
            if was_chosen(address, self._environment)
        ]
        failed = next(iter([*chosen, *outcome.away.values()]), None) or outcome.unfit
        if failed is not None:
            more = {"chosen": bool(chosen)} if outcome.away else {}
            raise type(failed)(failed.message, **failed.fields, **more, sent=outcome.sent)
        return outcome.sent

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def _send_page(self, waiting: Sequence[Unsent], outcome: "_Outcome") -> None:
        pairs = [(address_of(one.job.broker, self._environment), one) for one in waiting]
        for address, group in groupby(sorted(pairs, key=self._order), key=lambda pair: pair[0]):
            if address in outcome.passed_by:
                outcome.away[address] = outcome.passed_by[address]
            # A broker that is away is tried once: other pages may have events for it too.
            if address not in outcome.away:
                try:
                    self._send_to(address, [one for _, one in group], outcome)
                    self._away.pop(address, None)
                except BrokerUnavailable as error:
                    outcome.away[address] = self._away[address] = error

    def _order(self, pair: tuple[BrokerAddress, Unsent]) -> tuple[bool, str, int, str, str, int]:
        """Brokers that were away come last, since it takes long to find out that they still are."""
        address, (_, event) = pair
        away = address in self._away
        return (away, address.host, address.port, repr(hash(address)), event.job_id, event.seq)

    def _send_to(
        self, address: BrokerAddress, waiting: Sequence[Unsent], outcome: "_Outcome"
    ) -> None:
        arrived = []
        try:
            if address not in self._open:
                self._open[address] = Publisher(address)
            for job, event in waiting:
                try:
                    self._open[address].send(job.events_topic, to_json(event))
                except InvalidValue as error:
                    # Another program's record may name such a topic. Events of other jobs are sent
                    # all the same.
                    _log.warning(
                        "event kept and not sent job=%s seq=%d: %s",
                        job.job_id,
                        event.seq,
                        error.message,
                    )
                    outcome.unfit = outcome.unfit or InvalidValue(
                        f"{error.message}. Its events are kept and not sent: give job {job.job_id} "
                        "another topic_prefix where it was registered",
                        **error.fields,
                        job_id=job.job_id,
                    )
                else:
                    arrived.append(event)
        except BrokerUnavailable:
            if address in self._open:
                self._open.pop(address).close()
            raise
        finally:
            self._events.sent(arrived)
            outcome.sent += len(arrived)


class _Outcome:
    def __init__(self, passed_by: Mapping[BrokerAddress, BrokerUnavailable]) -> None:
        self.passed_by = dict(passed_by)
        self.sent = 0
        self.away: dict[BrokerAddress, BrokerUnavailable] = {}
        self.unfit: InvalidValue | None = None


class BackgroundSender:
    """Sends events in a thread: a caller that stored an event wakes it and goes on. While a broker
    is away it tries again, with longer and longer pauses, and complains once, if anybody chose that
    broker; events for other brokers are sent meanwhile.
    """

    def __init__(self, sender: EventSender, *, complain: Callable[[str], None]) -> None:
        self._sender = sender
        self._complain = complain
        self._wanted: set[str | None] = {None}
        """The jobs that have something to be sent; None stands for all."""
        self._condition = threading.Condition()
        self._closing = False
        self._away: set[str] = set()
        self._unfit: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="holdfast-events", daemon=True)
        self._thread.start()

    def wake(self, job_id: str) -> None:
        with self._condition:
            self._wanted.add(job_id)
            self._condition.notify()

    def close(self, within_s: float) -> None:
        """Send what can be sent within this time, and end."""
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
            if not self._send(wanted, pass_by=not again):
                late |= wanted
            if again:
                again_s = time.monotonic() + pause_s
                pause_s = min(2 * pause_s, BROKER_BACKOFF_MAX_S) if late else _FIRST_PAUSE_S
            if closing:
                self._sender.close()
                return

    def _send(self, jobs: set[str | None], *, pass_by: bool) -> bool:
        """Send what waits of these jobs; False when some of it must be tried again."""
        job_ids = None if None in jobs else [job_id for job_id in jobs if job_id is not None]
        try:
            self._sender.send(job_ids, pass_by=pass_by)
        except InvalidValue as error:
            # No later try would go better. `publish --unsent` reports it again.
            if error.message not in self._unfit:
                self._complain(error.message)
            self._unfit.add(error.message)
        except HoldfastError as error:
            broker = error.fields.get("broker", error.code)
            if broker not in self._away and error.fields.get("chosen", True):
                self._complain(f"{error.message}. Events are kept, and sent when it is back")
            self._away.add(broker)
            return False
        if self._away and not pass_by:
            _log.info("the broker is back")
            self._away.clear()
        return True
