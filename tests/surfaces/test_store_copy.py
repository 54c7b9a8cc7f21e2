"""`holdfast store copy`, and a store on PostgreSQL: tokens stay in force, and none is given again."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import holdfast
from holdfast.adapters.job_log import JobLog
from holdfast.kernel import token
from holdfast.kernel.errors import (
    Collision,
    Fenced,
    Held,
    InvalidValue,
    NotFound,
    RecordInvalid,
    SchemaTooNew,
    StoreUnavailable,
)
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import BEGINNING, Store
from holdfast.runtime.maintenance import Upkeep
from holdfast.testing import faults
from tests.stores.postgres_server import Server
from tests.surfaces.command import CommandLine

pytestmark = pytest.mark.prove


def upkeep(url: str) -> Upkeep:
    return Upkeep(Settings(store=url))


def entries(store: Store) -> list[tuple[object, ...]]:
    """The whole journal, but for its order."""
    found, cursor = [], BEGINNING
    while (batch := store.journal(cursor)).entries:
        found += [(e.revision, e.at, e.actor, e.kind, e.subject, e.data) for e in batch.entries]
        cursor = batch.cursor
    return sorted(found, key=lambda entry: entry[0])  # type: ignore[arg-type, return-value]


def work(url: str, namespace: str) -> tuple[str, int]:
    """Leave something of everything behind; return a job that is running, and its token."""
    with holdfast.connect(url, namespace=namespace) as hf:
        for name in ("é'1", "2", "3"):
            hf.jobs.register_job(f"do {name} \\u0000 \0", agent="a", agent_session="s")
        hf.holds.take("subject", by="b")
        hf.network.register_host(
            "h1", "10.0.0.1/24", "r1", "02:00:00:00:00:01", additional_info={"rack": 7}
        )
        with hf.locks.acquire("lock", by="x", ttl_s=60):
            pass
        job = hf.jobs.pick_pending("s")
        assert job is not None and job.token is not None
        return job.job_id, job.token


def state(url: str, namespace: str) -> tuple[object, ...]:
    with holdfast.connect(url, namespace=namespace) as hf:
        return (
            hf.jobs.list_jobs(),
            hf.holds.count("subject"),
            hf.network.list_all_hosts(),
            entries(hf.store),
        )


def last_token(url: str) -> int:
    """A token that is given now."""
    with holdfast.connect(url, namespace="tokens") as hf, hf.locks.acquire("any", by="x") as grant:
        return grant.token


def test_there_and_back_everything_is_as_it_was_and_tokens_grow(
    tmp_path: Path, postgres_url: str
) -> None:
    first, last = f"sqlite:{tmp_path / 'a.sqlite'}", f"sqlite:{tmp_path / 'deep' / 'b.sqlite'}"
    claims = {namespace: work(first, namespace) for namespace in ("default", "other")}
    given = [last_token(first)]
    was = {namespace: state(first, namespace) for namespace in claims}
    for source, target in ((first, postgres_url), (postgres_url, last)):
        copied = upkeep(source).copy(target)
        assert (copied["jobs"], copied["holds"]) == (6, 2)
        assert {namespace: state(target, namespace) for namespace in claims} == was
        assert upkeep(target).check() == []
        given.append(last_token(target))
    assert [token.era(one) for one in given] == sorted({token.era(one) for one in given})
    # A claim is still its holder's, by the same token and by no other.
    with holdfast.connect(last) as hf:
        job_id, claim = claims["default"]
        with pytest.raises(Fenced):
            hf.jobs.update_status(job_id, "completed", token=claim + 1)
        assert hf.jobs.update_status(job_id, "completed", token=claim).status.value == "completed"


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_entries_of_both_files_that_have_the_same_number_are_all_copied(
    tmp_path: Path, lead: int
) -> None:
    """After four million changes in one boot the durable file has come to the era of the locks
    beside it. Nothing could be copied from there on.
    """
    first, last = f"sqlite:{tmp_path / 'a.sqlite'}", f"sqlite:{tmp_path / 'b.sqlite'}"
    with holdfast.connect(first) as hf:
        hf.jobs.register_job("first", agent="a", agent_session="s")
        for by in ("one", "two"):
            hf.locks.acquire("lock", by=by)
            hf.locks.kick("lock", why="test")
        kicked = [
            entry.revision for entry in hf.store.journal().entries if entry.kind == "lock.kicked"
        ]
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as raw, raw:
        raw.execute("UPDATE meta SET number = ? WHERE name = 'revision'", (kicked[0] - 1 - lead,))
    with holdfast.connect(first) as hf:
        for _ in range(4):
            hf.jobs.register_job("later", agent="a", agent_session="s")
        was = entries(hf.store)
    assert len({entry[0] for entry in was}) < len(was), "some have the same"
    upkeep(first).copy(last)
    with holdfast.connect(last) as hf:
        copied = entries(hf.store)
        hf.jobs.register_job("new", agent="a", agent_session="s")
        assert entries(hf.store)[:-1] == copied, "the next number is beyond all of them"
    assert [one for one in copied if one[3] != "lock.kicked"] == [
        one for one in was if one[3] != "lock.kicked"
    ]
    assert [one[1:] for one in copied if one[3] == "lock.kicked"] == [
        one[1:] for one in was if one[3] == "lock.kicked"
    ]


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_copy_makes_nothing_that_others_may_read_beside_the_store(
    tmp_path: Path, kind: str
) -> None:
    url = f"{kind}:{tmp_path / 'from' / 'store'}"
    with holdfast.connect(url) as hf:
        hf.jobs.register_job("sort it", agent="agent", agent_session="s")
    upkeep(url).copy(f"sqlite:{tmp_path / 'to.sqlite'}")
    assert [path for path in (tmp_path / "from").rglob("*") if path.stat().st_mode & 0o077] == []


@pytest.mark.parametrize("source", ["sqlite", "files", "postgres"])
@pytest.mark.parametrize("target", ["sqlite", "files", "postgres"])
def test_from_every_kind_of_store_to_every_other(
    tmp_path: Path, postgres_server: Server, source: str, target: str
) -> None:
    places: dict[str, Callable[[str], str]] = {
        "sqlite": lambda end: f"sqlite:{tmp_path / end}.sqlite",
        "files": lambda end: f"files:{tmp_path / end}",
        "postgres": lambda _: postgres_server.database(),
    }
    first, last = places[source]("from"), places[target]("to")
    job_id, claim = work(first, "default")
    work(first, "other")
    given, was = last_token(first), [state(first, namespace) for namespace in ("default", "other")]
    copied = upkeep(first).copy(last)
    assert (copied["jobs"], copied["holds"], copied["hosts"]) == (6, 2, 2)
    assert [state(last, namespace) for namespace in ("default", "other")] == was
    assert upkeep(last).check() == []
    assert token.era(last_token(last)) > token.era(given)
    with holdfast.connect(last) as hf:
        with pytest.raises(Fenced):
            hf.jobs.update_status(job_id, "completed", token=claim + 1)
        assert hf.jobs.update_status(job_id, "completed", token=claim).status.value == "completed"
    if target == "files":
        assert json.loads((tmp_path / "to" / "hosts.json").read_bytes())["h1"]["rack"] == 7
        assert len(list((tmp_path / "to" / "jobs").glob("*.json"))) == 3


@pytest.mark.parametrize("kind", ["sqlite", "files", "postgres"])
def test_a_cursor_of_a_store_is_refused_by_its_copy(
    tmp_path: Path, postgres_server: Server, kind: str
) -> None:
    """An entry that was not read yet when the store was copied would be behind no cursor of the
    copy.
    """
    first, second = (
        postgres_server.database() if kind == "postgres" else f"{kind}:{tmp_path / end}"
        for end in ("a", "b")
    )
    with holdfast.connect(first) as hf:
        hf.holds.take("subject", by="b")
        _, cursor = hf.log.tail(1)
        hf.holds.take("subject", by="c")
    upkeep(first).copy(second)
    with holdfast.connect(second) as hf:
        with pytest.raises(InvalidValue, match="not a cursor of this journal"):
            hf.store.journal(cursor)
    with holdfast.connect(first) as hf:
        assert [entry.data["by"] for batch in hf.log.since(cursor) for entry in batch.entries] == [
            "c"
        ]


def test_the_audit_log_goes_on_with_a_copy_in_the_place_of_its_store_and_misses_nothing(
    tmp_path: Path, postgres_server: Server
) -> None:
    first, second = postgres_server.database(), postgres_server.database()
    log = JobLog(tmp_path, store="the database")
    job_id, claim = work(first, "default")
    with holdfast.connect(first) as hf:
        assert log.catch_up(hf.log, lambda _: None) is None
        late = hf.jobs.register_job("late", agent="a", agent_session="s").job_id
    upkeep(first).copy(second)
    with holdfast.connect(second) as hf:
        hf.jobs.update_status(job_id, "completed", token=claim)
        assert log.catch_up(hf.log, lambda _: None) is None
    events = list(log.events(job_id))
    assert len({event["revision"] for event in events}) == len(events)
    status = log.status(job_id)
    assert status is not None and status["status"] == "completed"
    assert len(list(log.events(late))) == 1


def test_a_target_that_holds_something_is_left_as_it_is(tmp_path: Path, postgres_url: str) -> None:
    source = f"sqlite:{tmp_path / 'a.sqlite'}"
    work(source, "default")
    work(postgres_url, "other")
    was = state(postgres_url, "other")
    with pytest.raises(Collision, match="new store"):
        upkeep(source).copy(postgres_url)
    assert state(postgres_url, "other") == was
    with pytest.raises(InvalidValue, match="exists"):
        upkeep(postgres_url).copy(source)
    with pytest.raises(InvalidValue):
        upkeep(source).copy("memory:")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "hosts.json").write_text("{}")
    with pytest.raises(Collision, match=r"hosts\.json"):
        upkeep(source).copy(f"files:{tmp_path / 'files'}")
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["hosts.json"]
    with pytest.raises(NotFound):
        upkeep(f"sqlite:{tmp_path / 'none.sqlite'}").copy(postgres_url)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_in_which_locks_are_held_is_not_copied(
    tmp_path: Path, postgres_url: str, kind: str
) -> None:
    urls = {"sqlite": f"sqlite:{tmp_path / 'a.sqlite'}", "postgres": postgres_url}
    target = f"sqlite:{tmp_path / 'b.sqlite'}"
    with (
        holdfast.connect(urls[kind], namespace="elsewhere") as hf,
        hf.locks.acquire("lock", by="x"),
    ):
        with pytest.raises(Held, match="1 lock is"):
            upkeep(urls[kind]).copy(target)
    assert not (tmp_path / "b.sqlite").exists()
    upkeep(urls[kind]).copy(target)


def test_a_store_in_which_a_swap_is_under_way_is_not_copied(tmp_path: Path) -> None:
    source, target = f"sqlite:{tmp_path / 'a.sqlite'}", tmp_path / "b.sqlite"
    with holdfast.connect(source) as hf, hf.workflows.swap("llama-70b"):
        with pytest.raises(Held, match="swap"):
            upkeep(source).copy(f"sqlite:{target}")
    assert not target.exists()
    upkeep(source).copy(f"sqlite:{target}")


def test_what_cannot_be_read_is_named_and_nothing_is_written(
    tmp_path: Path, postgres_url: str
) -> None:
    target = tmp_path / "b.sqlite"
    job_id, _ = work(postgres_url, "default")
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute("UPDATE holdfast.s_jobs SET value = '{\"no\":1}' WHERE key = %s", (job_id,))
        with pytest.raises(RecordInvalid, match=job_id):
            upkeep(postgres_url).copy(f"sqlite:{target}")
        raw.execute("INSERT INTO holdfast.spaces VALUES ('of_the_future', 1, '')")
        with pytest.raises(SchemaTooNew, match="of_the_future"):
            upkeep(postgres_url).copy(f"sqlite:{target}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("held", [b'{"no":1}', b"{\xff}"])
def test_a_damaged_record_of_sqlite_is_named_and_nothing_is_written(
    tmp_path: Path, postgres_url: str, held: bytes
) -> None:
    source = tmp_path / "a.sqlite"
    job_id, _ = work(f"sqlite:{source}", "default")
    with closing(sqlite3.connect(source)) as raw, raw:
        raw.execute("UPDATE s_jobs SET value = ? WHERE key = ?", (held, job_id))
    with pytest.raises(RecordInvalid, match=job_id):
        upkeep(f"sqlite:{source}").copy(postgres_url)
    assert state(postgres_url, "default") == ([], 0, {}, [])


def test_a_copy_whose_connection_is_lost_at_its_commit_finds_out_how_that_ended(
    tmp_path: Path, postgres_url: str
) -> None:
    source = f"sqlite:{tmp_path / 'a.sqlite'}"
    work(source, "default")

    def lose(_: str) -> None:
        raise psycopg.OperationalError("the connection is lost")

    with (
        faults.at_point("postgres.commit.before", lose),
        pytest.raises(StoreUnavailable, match="nothing was changed"),
    ):
        upkeep(source).copy(postgres_url)
    assert state(postgres_url, "default") == ([], 0, {}, [])
    with faults.at_point("postgres.commit.after", lose):
        upkeep(source).copy(postgres_url)
    assert state(postgres_url, "default") == state(source, "default")


def test_check_finds_damage_on_postgresql_and_remove_takes_it_out(postgres_url: str) -> None:
    job_id, _ = work(postgres_url, "default")
    assert upkeep(postgres_url).check() == []
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        raw.execute("UPDATE holdfast.s_jobs SET value = 'no json' WHERE key = %s", (job_id,))
        raw.execute("UPDATE holdfast.s_jobs SET by_turn = NULL WHERE by_turn IS NOT NULL")
        raw.execute("UPDATE holdfast.s_holds SET rev = rev + 1000000000")
        raw.execute(
            "UPDATE holdfast.journal SET data = '[' WHERE subject = %s AND kind = 'job.registered'",
            (job_id,),
        )
    found = upkeep(postgres_url).check()
    for words, number in (
        (job_id, 1),
        ("disagrees with its indexes", 2),
        ("after the store's last one", 1),
        ("journal entry", 1),
    ):
        assert len([line for line in found if words in line]) == number, (words, found)
    assert upkeep(postgres_url).remove("jobs", job_id) == "no json"
    with pytest.raises(NotFound):
        upkeep(postgres_url).remove("jobs", job_id)


def test_a_new_era_is_begun_on_demand(tmp_path: Path, postgres_url: str) -> None:
    before = last_token(postgres_url)
    upkeep(postgres_url).begin_era()
    assert token.era(last_token(postgres_url)) > token.era(before)
    with pytest.raises(InvalidValue, match="restore"):
        upkeep(f"sqlite:{tmp_path / 'a.sqlite'}").begin_era()


def test_the_commands(tmp_path: Path, postgres_url: str) -> None:
    command = CommandLine(tmp_path)
    source = f"sqlite:{tmp_path / 'a.sqlite'}"
    work(source, "default")
    assert "3 of jobs" in command("store", "copy", source, postgres_url).out
    assert command("store", "copy", source, postgres_url).status == 4
    assert command("store", "check", "--store", postgres_url).out.strip() == "sound"
    info = command("store", "info", "--store", postgres_url).out
    assert "PostgreSQL 1" in info and "last_token" in info
    assert command("store", "begin-era", "--store", postgres_url).out.startswith("era ")
    nowhere = command("store", "info", "--store", "postgresql://user:s3cret@127.0.0.1:1/x")
    assert nowhere.status == 0 and "does not answer" in nowhere.out and "s3cret" not in nowhere.out
    assert command("store", "backup", str(tmp_path / "f"), "--store", postgres_url).status == 2
