"""Events of jobs: signed, numbered, kept until sent, and believed only when genuine. On every
store.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domains.jobs import Broker, Job, JobStatus
from holdfast.domains.jobs.broker_address import address_of
from holdfast.domains.jobs.events import Event, EventKind, genuine, signature
from holdfast.domains.jobs.records import JOBS, shown
from holdfast.domains.jobs.transitions import ExtraChange
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import Fenced, ImpossibleTransition, InvalidValue, NotFound
from holdfast.kernel.limits import JOB_EVENT_BYTES_MAX
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import ManualClock
from tests.harness.stores import open_store
from tests.unit.job_world import STORES, EventWorld


@pytest.fixture(params=STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventWorld]:
    with closing(open_store(request.param, tmp_path, ManualClock(), request)) as store:
        yield EventWorld(store)


def test_publishing_moves_the_job_as_the_event_says(world: EventWorld) -> None:
    job = world.jobs.register_job("do it", agent="a", agent_session="s")
    started = world.events.publish(job.job_id, "started").job
    assert (started.status, started.attempt) == (JobStatus.RUNNING, 1)
    assert world.events.publish(job.job_id, EventKind.STARTED).job.token == started.token
    world.events.publish(job.job_id, "progress", detail="half", data={"percent": 50})
    done = world.events.publish(
        job.job_id, "completed", detail="ten exercises", token=started.token
    ).job
    assert (done.status, done.result, done.last_seq, done.token) == (
        JobStatus.COMPLETED,
        "ten exercises",
        4,
        None,
    )
    with pytest.raises(ImpossibleTransition):
        world.events.publish(job.job_id, "error")
    with pytest.raises(ImpossibleTransition):
        world.events.publish(job.job_id, "progress")
    logged = world.events.of_job(job.job_id)
    assert [(event.seq, event.event.value) for event in logged] == [
        (1, "started"),
        (2, "started"),
        (3, "progress"),
        (4, "completed"),
    ]
    assert world.events.of_job(job.job_id, after_seq=3) == logged[3:]
    kinds = [entry.kind for entry in world.journal.tail(20)[0]]
    assert kinds.count("job.published") == 4
    assert kinds.count("job.status_changed") == 2


def test_a_stale_worker_can_tell_nothing(world: EventWorld) -> None:
    job = world.running()
    world.jobs.requeue(job.job_id)
    for event in EventKind:
        with pytest.raises(Fenced):
            world.events.publish(job.job_id, event, token=job.token)
    assert world.jobs.get_job(job.job_id).last_seq == 0
    with pytest.raises(NotFound):
        world.events.publish("nosuch", "progress")
    with pytest.raises(InvalidValue, match="started, permission_required"):
        world.events.publish(job.job_id, "finished")


def test_events_wait_until_they_are_sent_and_are_sent_in_order(world: EventWorld) -> None:
    first, second = world.running(), world.running()
    for job in (second, first, second):
        world.events.publish(job.job_id, "progress", token=job.token)
    waiting = world.events.unsent(second.job_id)
    assert [one.event.seq for one in waiting] == [1, 2]
    assert all(one.job.job_id == second.job_id for one in waiting)
    assert len(world.events.unsent()) == 3
    world.events.sent([one.event for one in waiting])
    assert [one.event.job_id for one in world.events.unsent()] == [first.job_id]
    world.events.sent([])


def test_an_event_can_belong_to_the_step_that_it_reports(world: EventWorld) -> None:
    job = world.running()
    world.jobs.register_job("next", agent="a", agent_session="s")
    also = world.events.with_step(EventKind.COMPLETED, detail="done", data={"files": 2})
    with pytest.raises(Fenced):
        world.jobs.finish_and_pick(job.job_id, "completed", token=1, also=also)
    assert world.events.unsent() == []
    done, picked = world.jobs.finish_and_pick(
        job.job_id, "completed", token=job.token or 0, also=also
    )
    assert (done.last_seq, done.status) == (1, JobStatus.COMPLETED)
    assert picked is not None
    assert [(one.event.event, one.event.detail) for one in world.events.unsent()] == [
        (EventKind.COMPLETED, "done")
    ]
    [event] = world.events.of_job(job.job_id)
    assert world.events.receive(to_json(event)).event == event
    failed = world.events.with_step(EventKind.ERROR, detail="no")
    assert (
        world.jobs.update_status(picked.job_id, "error", token=picked.token, also=failed).last_seq
        == 1
    )


def test_an_end_reported_by_an_event_of_the_attempt(world: EventWorld) -> None:
    def of_attempt(end: Callable[[Job], object]) -> bool:
        job = world.running()
        assert not world.events.ended_by_event(job)
        end(job)
        return world.events.ended_by_event(job)

    def publish(*kinds: str) -> Callable[[Job], object]:
        return lambda job: [
            world.events.publish(job.job_id, kind, token=job.token) for kind in kinds
        ]

    def fail(step: ExtraChange) -> Callable[[Job], object]:
        return lambda job: world.jobs.update_status(job.job_id, "error", also=step)

    for kind in ("completed", "error"):
        assert of_attempt(publish("started", "progress", kind))
        assert of_attempt(fail(world.events.with_step(EventKind(kind))))
    assert not of_attempt(publish("progress", "cancelled"))
    assert not of_attempt(publish("progress"))
    assert not of_attempt(lambda job: world.jobs.update_status(job.job_id, "completed"))
    assert not of_attempt(lambda job: world.jobs.cancel(job.job_id))
    # Ended without an event of its own, behind one about something else.
    assert not of_attempt(
        lambda job: (publish("progress")(job), world.jobs.update_status(job.job_id, "error"))
    )


def test_the_end_of_another_attempt_is_not_this_one_s(world: EventWorld) -> None:
    first = world.running()
    world.jobs.requeue(first.job_id)
    second = world.jobs.pick_pending("s")
    assert second is not None
    world.events.publish(second.job_id, "completed", token=second.token)
    assert (world.events.ended_by_event(first), world.events.ended_by_event(second)) == (
        False,
        True,
    )
    world.jobs.prune(keep_finished=0)
    assert not world.events.ended_by_event(second)


def test_only_so_many_events_of_a_job_are_kept(
    world: EventWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.domains.jobs import event_stream

    monkeypatch.setattr(event_stream, "JOB_EVENTS_KEEP", 3)
    job = world.running()
    for _ in range(5):
        world.events.publish(job.job_id, "progress")
    assert [event.seq for event in world.events.of_job(job.job_id)] == [3, 4, 5]
    for seq in range(6, 10):
        # Those that come from elsewhere count as well.
        assert world.events.receive(world.forged(job, seq=seq, event="progress")).news
    assert [event.seq for event in world.events.of_job(job.job_id)] == [7, 8, 9]


def test_an_event_that_is_too_large_or_no_json_is_refused_whole(world: EventWorld) -> None:
    job = world.running()
    for wrong in ("x" * JOB_EVENT_BYTES_MAX, object()):
        with pytest.raises(InvalidValue):
            world.events.publish(job.job_id, "completed", data={"wrong": wrong})
    assert world.jobs.get_job(job.job_id) == job
    assert world.events.unsent() == []


def test_an_event_of_this_registry_arrives_as_known(world: EventWorld) -> None:
    job = world.running()
    event = world.events.publish(job.job_id, "progress", data={"a": [1, 2.5, None, "ü"]}).event
    before = world.jobs.get_job(job.job_id)
    received = world.events.receive(to_json(event), topic=job.events_topic)
    assert (received.event, received.dropped, received.news) == (event, None, False)
    assert world.jobs.get_job(job.job_id) == before


def test_a_genuine_event_of_another_copy_moves_the_job(world: EventWorld) -> None:
    job = world.running()
    received = world.events.receive(world.forged(job, seq=7))
    assert (received.dropped, received.news) == (None, True)
    done = world.jobs.get_job(job.job_id)
    assert (done.status, done.result, done.last_seq) == (JobStatus.COMPLETED, "done", 7)
    assert world.journal.tail(2)[0][0].kind == "job.received"


FORGERIES: dict[str, dict[str, Any]] = {
    "without a signature": {"key": None},
    "with another key": {"key": "not the key"},
    "with a signature that is no text": {"after": {"sig": 5}},
    "with an empty signature": {"after": {"sig": ""}},
    "altered detail": {"after": {"detail": "other"}},
    "altered event": {"event": "progress", "after": {"event": "completed"}},
    "altered number": {"after": {"seq": 99}},
    "added data": {"after": {"data": {"x": 1}}},
    "an unknown field": {"who": "me"},
    "of another job": {"job_id": "other-job"},
    "of another version": {"schema_version": 2},
    "of version true": {"schema_version": True},
    "of no version": {"schema_version": None},
    "a naive time": {"timestamp": "2026-01-01T00:00:00"},
    "no number": {"seq": "1"},
    "number 0": {"seq": 0},
    "an event that there is not": {"event": "finished"},
    "a path for a job": {"job_id": "../../etc/passwd"},
    "a number beyond the order of keys": {"seq": 10**12},
    "a number beyond every index": {"seq": 2**63},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_or_altered_completed_changes_nothing(
    world: EventWorld, forgery: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = world.running()
    logged = world.journal.tail(50)[0]
    with caplog.at_level(logging.WARNING, "holdfast.jobs"):
        received = world.events.receive(
            world.forged(job, **dict(FORGERIES[forgery])), topic=job.events_topic
        )
    assert received.event is None
    assert received.dropped
    assert "event dropped" in caplog.text
    assert job.auth_token is not None
    assert job.auth_token not in caplog.text
    assert world.jobs.get_job(job.job_id) == job
    assert world.journal.tail(50)[0] == logged


def test_what_grows_too_large_as_it_is_read_is_dropped(world: EventWorld) -> None:
    """It ended the watchers."""
    job = world.running()
    payload = world.forged(job, data=[1e15] * 10_000).replace(b"1000000000000000.0", b"1e15")
    assert len(payload) < 2 * JOB_EVENT_BYTES_MAX
    assert "too large" in (world.events.receive(payload).dropped or "")
    assert world.jobs.get_job(job.job_id) == job


def test_an_event_of_a_job_that_is_removed_as_it_arrives_is_dropped(
    world: EventWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.running()
    payload, get = world.forged(job), world.store.get

    def removed_behind(*given: Any, **more: Any) -> Any:
        found = get(*given, **more)
        world.store.transact(lambda tx: tx.delete(JOBS, job.job_id), scope=[JOBS])
        return found

    monkeypatch.setattr(world.store, "get", removed_behind)
    assert "removed" in (world.events.receive(payload).dropped or "")


def test_a_replayed_or_late_event_changes_nothing(world: EventWorld) -> None:
    job = world.running()
    late = world.forged(job, seq=2)
    genuine_one = to_json(world.events.publish(job.job_id, "progress").event)
    for _ in range(3):
        world.events.publish(job.job_id, "progress")
    before = world.jobs.get_job(job.job_id)
    assert "not beyond 4" in (world.events.receive(late).dropped or "")
    assert world.events.receive(genuine_one).news is False
    assert world.jobs.get_job(job.job_id) == before
    ended = world.forged(before, seq=9)
    assert world.events.receive(ended).news
    after = world.jobs.get_job(job.job_id)
    assert world.events.receive(ended).news is False
    assert world.events.receive(world.forged(after, event="error")).dropped
    assert world.jobs.get_job(job.job_id) == after


def test_a_message_on_another_jobs_topic_is_dropped(world: EventWorld) -> None:
    job, other = world.running(), world.running()
    assert "topic" in (
        world.events.receive(world.forged(job), topic=other.events_topic).dropped or ""
    )
    assert world.jobs.get_job(job.job_id) == job


def test_without_a_key_nothing_is_believed(world: EventWorld) -> None:
    job = world.running(signed=False)
    assert job.auth_token is None
    event = world.events.publish(job.job_id, "progress").event
    assert event.sig is msgspec.UNSET
    received = world.events.receive(world.forged(job, seq=5))
    assert received.event is not None
    assert "no key" in (received.dropped or "")
    assert world.jobs.get_job(job.job_id).status is JobStatus.RUNNING


hostile = st.binary(max_size=300) | st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
).map(lambda value: json.dumps(value).encode())


@given(hostile)
def test_hostile_messages_are_dropped(payload: bytes) -> None:
    world = EventWorld(MemoryStore())
    assert world.events.receive(payload).event is None
    assert world.events.receive(b"[" * 5000 + payload).event is None
    assert world.events.receive(payload + b" " * 100_000).event is None


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(data=json_values, detail=st.text(max_size=20), key=st.text(min_size=1, max_size=40))
def test_a_signature_survives_the_wire_and_nothing_else(data: Any, detail: str, key: str) -> None:
    event = {"seq": 1, "job_id": "a", "event": "progress", "detail": detail, "data": data}
    sent = msgspec.json.decode(msgspec.json.encode({**event, "sig": signature(event, key)}))
    assert genuine(sent, key)
    # As another program would write it: other spaces, other order, escaped letters.
    other = json.dumps(dict(reversed(sent.items())), indent=1)
    assert genuine(msgspec.json.decode(other), key)
    assert not genuine({**sent, "seq": 2}, key)
    assert not genuine(sent, key + "x")


def test_secrets_are_not_shown_or_journalled(world: EventWorld) -> None:
    broker = Broker(username="me", password="hunter2", store_password=True)
    job = world.running(broker=broker)
    world.events.publish(job.job_id, "progress", data={"password": "hunter2", "note": "fine"})
    assert job.auth_token is not None
    seen = json.dumps(shown(job)) + str([entry.data for entry in world.journal.tail(20)[0]])
    # What a program prints or logs of a job, with rich or without, and of how its broker is
    # reached.
    seen += (
        repr(job)
        + str(job.__rich_repr__())
        + repr(msgspec.structs.replace(job, extra={"their_token": "hunter2"}))
    )
    seen += repr(address_of(broker, {})) + repr(
        msgspec.structs.replace(broker, extra={"their_password": "hunter2"})
    )
    assert "hunter2" not in seen
    assert job.auth_token not in seen
    assert f"Job(schema_version=1, job_id={job.job_id!r}, " in seen
    assert shown(job)["signed"] is True


def test_a_literal_password_is_refused_unless_it_is_asked_for(world: EventWorld) -> None:
    with pytest.raises(InvalidValue, match="MQTT_PASSWORD") as caught:
        world.jobs.register_job(
            "x", agent="a", agent_session="s", broker=Broker(password="hunter2")
        )
    assert "hunter2" not in str(caught.value)
    assert world.jobs.list_jobs() == []


@pytest.mark.parametrize("prefix", ["a/+/b", "#", "$SYS/x", "/a", "a/", "a\nb", ""])
def test_topics_that_could_catch_others_are_refused(world: EventWorld, prefix: str) -> None:
    with pytest.raises(ValueError):
        world.jobs.register_job("x", agent="a", agent_session="s", topic_prefix=prefix or "\0")


def test_the_environment_overrides_the_record() -> None:
    broker = Broker(host="broker", port=1884, username="me", password_env="MY_PASSWORD")
    plain = address_of(broker, {"MY_PASSWORD": "p1"})
    assert (plain.host, plain.port, plain.tls, plain.username, plain.password) == (
        "broker",
        1884,
        False,
        "me",
        "p1",
    )
    over = address_of(
        broker,
        {
            "MQTT_BROKER": "other",
            "MQTT_PORT": "99",
            "MQTT_TLS": "1",
            "MQTT_USERNAME": "you",
            "MQTT_PASSWORD": "p2",
            "MQTT_CA_CERTS": "ca.pem",
            "MQTT_CERTFILE": "cert.pem",
            "MQTT_KEYFILE": "key.pem",
            "MY_PASSWORD": "p1",
        },
    )
    assert (over.host, over.port, over.tls, over.username, over.password) == (
        "other",
        99,
        True,
        "you",
        "p2",
    )
    assert (over.ca_certs, over.certfile, over.keyfile) == ("ca.pem", "cert.pem", "key.pem")
    assert address_of(Broker(), {}).host == "localhost"
    assert address_of(Broker(), {"MQTT_TLS": "true"}).port == 8883
    for wrong in (
        {"MQTT_PORT": "x"},
        {"MQTT_PORT": "0"},
        {"MQTT_PORT": "70000"},
        {"MQTT_TLS": "maybe"},
    ):
        with pytest.raises(InvalidValue):
            address_of(Broker(), wrong)


def test_an_event_has_the_form_that_others_know(world: EventWorld) -> None:
    job = world.running()
    sent = json.loads(to_json(world.events.publish(job.job_id, "progress", detail="half").event))
    assert set(sent) == {"schema_version", "seq", "job_id", "event", "timestamp", "detail", "sig"}
    assert (sent["schema_version"], sent["seq"], sent["event"]) == (1, 1, "progress")
    assert sent["timestamp"].endswith("Z")
    assert isinstance(msgspec.convert(sent, Event), Event)
