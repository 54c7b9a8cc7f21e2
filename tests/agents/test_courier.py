"""The courier of events: a broker that is down delays no other."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.adapters import event_sender
from holdfast.adapters.event_sender import BackgroundSender, EventSender
from holdfast.domains.jobs import Broker, event_stream
from holdfast.domains.jobs.broker_address import BrokerAddress
from holdfast.domains.jobs.records import HOST, JOBS
from holdfast.kernel.errors import BrokerUnavailable, InvalidValue
from tests.harness.errors import raises
from tests.harness.timeouts import PATIENCE_S


class Brokers:
    """What stands for every broker; the one called `away` is not there, nor is the local one."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.asked: list[str] = []
        self.back = False
        self._changed = threading.Condition()

    def wait_for(self, there: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(there, PATIENCE_S)

    def publisher(self, reach: BrokerAddress) -> "Brokers":
        with self._changed:
            self.asked.append(reach.host)
            self._changed.notify_all()
        if reach.host in ("away", HOST) and not self.back:
            raise BrokerUnavailable("it is away", outcome="none")
        return self

    def send(self, topic: str, payload: bytes) -> None:
        if "#" in topic:
            raise InvalidValue(f"nothing can be sent to the topic {topic}", field="topic_prefix")
        with self._changed:
            self.got.append(topic)
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(event_sender, "Publisher", made.publisher)
    monkeypatch.setattr(event_stream, "JOURNAL_READ_MAX", 4)
    return made


@pytest.fixture
def hf() -> Iterator[holdfast.Holdfast]:
    with holdfast.connect("memory:") as made:
        yield made


def register(hf: holdfast.Holdfast, job_id: str, host: str) -> None:
    hf.jobs.register_job("x", agent="a", agent_session="s", job_id=job_id, broker=Broker(host=host))


def test_the_events_behind_those_of_a_broker_that_is_away_are_sent(
    hf: holdfast.Holdfast, brokers: Brokers
) -> None:
    register(hf, "a", "away")
    register(hf, "z", "there")
    for _ in range(9):
        hf.job_events.publish("a", "progress")
    for _ in range(5):
        hf.job_events.publish("z", "progress")
    sender = EventSender(hf.job_events, {})
    with pytest.raises(BrokerUnavailable) as raised:
        sender.send()
    assert raised.value.fields["sent"] == 5
    assert brokers.got == ["holdfast/jobs/z/events"] * 5
    assert brokers.asked == ["away", "there"]
    assert [one.event.seq for one in hf.job_events.unsent()] == list(range(1, 10))


def test_a_refused_topic_is_reported_after_the_rest_was_sent(
    hf: holdfast.Holdfast, brokers: Brokers
) -> None:
    spoil(hf, "a")
    register(hf, "z", "there")
    hf.job_events.publish("z", "progress")
    with raises(InvalidValue, field="topic_prefix", job_id="a") as raised:
        EventSender(hf.job_events, {}).send()
    assert (raised.value.fields["sent"], len(brokers.got)) == (1, 1)


def test_a_worker_reports_such_a_topic_once_and_goes_on(
    hf: holdfast.Holdfast, brokers: Brokers
) -> None:
    spoil(hf, "a")
    said: list[str] = []
    background = BackgroundSender(EventSender(hf.job_events, {}), complain=said.append)
    background.wake("a")
    background.close(PATIENCE_S)
    again: Any = background._send({"a"}, pass_by=False)
    assert (again, len(said)) == (True, 1)


@pytest.mark.parametrize(
    ("host", "environment", "complaints"),
    [
        (HOST, {}, 0),
        (HOST, {"MQTT_BROKER": HOST}, 1),
        (HOST, {"MQTT_PORT": "9"}, 1),
        ("away", {}, 1),
    ],
)
def test_a_worker_warns_about_a_broker_only_if_it_was_configured(
    hf: holdfast.Holdfast, brokers: Brokers, host: str, environment: dict[str, str], complaints: int
) -> None:
    register(hf, "a", host)
    hf.job_events.publish("a", "progress")
    said: list[str] = []
    background = BackgroundSender(EventSender(hf.job_events, environment), complain=said.append)
    background.wake("a")
    background.close(PATIENCE_S)
    assert (len(said), len(hf.job_events.unsent())) == (complaints, 1)


def test_events_go_out_at_once_while_another_broker_is_away(
    hf: holdfast.Holdfast, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long a pause that nothing would come in time by waiting for its end.
    monkeypatch.setattr(event_sender, "_FIRST_PAUSE_S", 3600.0)
    register(hf, "a", "away")
    register(hf, "z", "there")
    hf.job_events.publish("a", "progress")
    said: list[str] = []
    background = BackgroundSender(EventSender(hf.job_events, {}), complain=said.append)
    brokers.wait_for(lambda: "away" in brokers.asked)
    for number in range(1, 4):
        hf.job_events.publish("z", "progress")
        background.wake("z")
        brokers.wait_for(lambda number=number: len(brokers.got) == number)  # type: ignore[misc]
        hf.job_events.publish("a", "progress")
        background.wake("a")
    asked = list(brokers.asked)
    background.close(PATIENCE_S)
    assert (asked, len(said)) == (["away", "there"], 1)
    # At the end it is tried once more.
    assert brokers.asked == ["away", "there", "away"]


def test_a_broker_that_was_down_gets_its_events_after_a_pause(
    hf: holdfast.Holdfast, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_sender, "_FIRST_PAUSE_S", 0.01)
    register(hf, "a", "away")
    register(hf, "z", "there")
    hf.job_events.publish("a", "progress")
    background = BackgroundSender(EventSender(hf.job_events, {}), complain=lambda _: None)
    brokers.wait_for(lambda: brokers.asked.count("away") > 1)
    brokers.back = True
    # Others' events do not put the next try off.
    while "holdfast/jobs/a/events" not in brokers.got:
        hf.job_events.publish("z", "progress")
        background.wake("z")
        brokers.wait_for(lambda: len(brokers.got) > 0)
    background.close(PATIENCE_S)
    assert hf.job_events.unsent() == []


def spoil(hf: holdfast.Holdfast, job_id: str) -> None:
    """A job with a topic that only another program could have given it, and an event."""
    register(hf, job_id, "there")
    job = hf.jobs.get_job(job_id)
    hf.store.transact(
        lambda tx: tx.put(JOBS, job_id, replace(job, topic_prefix="a/#")), scope=[JOBS]
    )
    hf.job_events.publish(job_id, "progress")
