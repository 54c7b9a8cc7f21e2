"""`holdfast locks` and `holdfast token` but for `run`: what they print, in every shape that a lock
can have.
"""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.kernel.errors import LeaseLost
from holdfast.kernel.names import check_label
from holdfast.primitives.locks import Mode, request
from holdfast.primitives.locks.inspect import Alive, WaitStatus
from holdfast.runtime.connection import Holdfast, connect
from holdfast.surfaces.cli.lock_notes import waiting_line
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import CommandLine, Say
from tests.surfaces.locking import Bench, a_dead_process, end, remark


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/store.sqlite"


@pytest.fixture
def hf(url: str) -> Iterator[Holdfast]:
    with connect(url) as made:
        yield made


@contextmanager
def waiting(hf: Holdfast, names: list[str], by: str, **how: Any) -> Iterator[None]:
    """In the block, a job waits for names in another thread. At its end, all is released, what it
    has got by then too.
    """
    asleep = threading.Event()

    def ask() -> None:
        with suppress(LeaseLost):
            hf.locks.acquire(
                names, by=by, timeout_s=PATIENCE_S, on_wait=lambda _: asleep.set(), **how
            ).release()

    thread = threading.Thread(target=ask)
    thread.start()
    assert asleep.wait(PATIENCE_S)
    try:
        yield
    finally:
        for status in hf.locks.list_held():
            for hold in status.holds:
                hf.locks.release_token(hold.token)
        thread.join(PATIENCE_S)


# Taking and giving back


def test_acquire_prints_the_token_alone(say: Say, hf: Holdfast) -> None:
    ran = say("locks", "acquire", "a", "b", "--by", "job-7", "--ttl", "60")
    assert (ran.status, ran.err) == (0, "")
    token = int(ran.out)
    hf.check_token("a", token)
    hf.check_token("b", token)
    [hold] = hf.locks.status("a").holds
    assert (hold.by, hold.process, hold.has_ttl, hold.names) == ("job-7", None, True, ("a", "b"))
    assert say("locks", "release", str(token)) == (0, f"released {token}\n", "")
    again = say("locks", "release", str(token))
    assert (again.status, again.out) == (4, "")
    assert "holdfast locks status" in again.err
    assert hf.locks.list_held() == []


def test_acquire_as_json(say: Say, hf: Holdfast) -> None:
    shown = json.loads(
        say("locks", "acquire", "a", "--by", "job-7", "--pid", str(os.getpid()), "-s", "--json").out
    )
    assert (shown["by"], shown["names"], shown["mode"], shown["ttl_s"]) == (
        "job-7",
        ["a"],
        "shared",
        None,
    )
    assert shown["tokens"] == {"a": shown["token"]}
    assert shown["reentered"] is False
    again = json.loads(
        say("locks", "acquire", "a", "--by", "job-7", "--ttl", "9", "-s", "--json").out
    )
    assert (again["token"], again["reentered"]) == (shown["token"], True)
    [hold] = hf.locks.status("a").holds
    assert hold.process is not None
    assert (hold.process.pid, hold.process.label) == (os.getpid(), "job-7")
    assert json.loads(say("locks", "release", str(shown["token"]), "--json").out) == {
        "released": shown["token"]
    }


def test_acquire_asks_for_its_job_also_inside_a_run(
    say: Say, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts of one command that both acquired by its job would share what each wants alone."""
    monkeypatch.setenv("HOLDFAST_LOCK_BY", "job-7")
    assert say("locks", "acquire", "a", "--ttl", "60").status == 2
    assert say("locks", "acquire", "a", "--ttl", "60", "--by", "job-7").status == 0
    assert [hold.by for hold in hf.locks.status("a").holds] == ["job-7"]
    # What the job around it holds is not waited for.
    assert say("locks", "wait", "a", "-n").status == 0
    assert say("locks", "wait", "a", "-n", "--by", "other").status == 5


def test_what_is_held_is_refused_in_time(say: Say, hf: Holdfast) -> None:
    hf.locks.acquire("a", by="job-1")
    for words in (["-n"], ["--timeout", "0.05"], ["-w", "0", "-q"]):
        ran = say("locks", "acquire", "a", "--by", "job-2", "--ttl", "60", *words)
        assert (ran.status, ran.out) == (5, ""), words
        assert "held by job-1 (process" in ran.err
        assert "holdfast locks explain a" in ran.err
    assert hf.locks.status("a").queue == ()


def test_the_holder_is_named_although_another_waits_just_ahead(say: Say, hf: Holdfast) -> None:
    hf.locks.acquire("a", by="job-1")
    with waiting(hf, ["a"], "job-2"):
        ran = say("locks", "acquire", "a", "--by", "job-3", "--ttl", "60", "-n")
    assert ran.status == 5
    assert "held by job-1 (process" in ran.err and "1 waiter ahead" in ran.err, ran.err


def test_a_wait_report_leaves_out_dead_holders(hf: Holdfast) -> None:
    hf.locks.acquire("a", by="killed", process=a_dead_process())
    status = hf.locks.status("a")
    me = WaitStatus(
        position=1,
        by="job-1",
        mode=Mode.EXCLUSIVE,
        since=status.now,
        priority=0,
        alive=Alive.ALIVE,
        process=hf.processes.current(),
        names=("a",),
        looks=False,
    )
    mine = msgspec.structs.replace(status, queue=(me,))
    assert waiting_line([mine], "job-1", Mode.EXCLUSIVE) is None
    other = msgspec.structs.replace(me, by="job-2")
    line = waiting_line(
        [msgspec.structs.replace(status, queue=(other, msgspec.structs.replace(me, position=2)))],
        "job-1",
        me.mode,
    )
    assert (
        line is not None
        and line[1] == "waiting for a: free, and others are before you; 1 ahead of you"
    )
    hf.locks.acquire("b", by="alive")
    held = msgspec.structs.replace(
        hf.locks.status("b"), queue=(msgspec.structs.replace(me, names=("a", "b")),)
    )
    line = waiting_line([mine, held], "job-1", Mode.EXCLUSIVE)
    assert line is not None and line[1].startswith("waiting for b: held by alive (process ")


def test_renew(say: Say, hf: Holdfast) -> None:
    token = say("locks", "acquire", "a", "b", "--by", "job-7", "--ttl", "60").out.strip()
    before = hf.locks.status("a").holds[0].expires_at
    ran = say("locks", "renew", token, "--ttl", "3600")
    assert (ran.status, ran.err) == (0, "")
    after = hf.locks.status("a").holds[0].expires_at
    assert (after - before).total_seconds() > 3000
    assert ran.out == f"a, b held by job-7 until {after:%Y-%m-%d %H:%M:%S}Z\n"
    shown = json.loads(say("locks", "renew", token, "--json").out)
    assert (shown["token"], shown["by"], shown["names"]) == (int(token), "job-7", ["a", "b"])
    gone = say("locks", "renew", str(int(token) + 1))
    assert (gone.status, gone.out) == (4, "")
    assert "stop work" in gone.err


def test_release_by_name(say: Say, hf: Holdfast) -> None:
    hf.locks.acquire(["a", "b", "c"], by="job-1", ttl_s=60, process=None)
    hf.locks.acquire("d", by="job-2")
    assert say("locks", "release", "a", "--by", "job-1") == (0, "released a\n", "")
    part = say("locks", "release", "b", "d", "--by", "job-1")
    assert (part.status, part.out) == (1, "released b\n")
    assert "job job-1 does not hold d" in part.err
    none = say("locks", "release", "d", "--by", "job-1")
    assert (none.status, none.out) == (1, "")
    assert "holdfast locks status d" in none.err
    assert json.loads(say("locks", "release", "c", "--by", "job-1", "--json").out) == {
        "released": ["c"]
    }
    assert [status.name for status in hf.locks.list_held()] == ["d"]


def test_wait(say: Say, hf: Holdfast) -> None:
    assert say("locks", "wait", "a", "b", "--timeout", "1") == (0, "", "")
    grant = hf.locks.acquire("a", by="job-1", mode="shared")
    assert say("locks", "wait", "a", "-n", "-s") == (0, "", "")
    for words in (["-n"], ["-w", "0.05", "-q"]):
        ran = say("locks", "wait", "b", "a", *words)
        assert (ran.status, ran.out) == (5, "")
        assert "a is held by job-1 (process" in ran.err and "holdfast locks explain a`" in ran.err
    answer = json.loads(say("locks", "wait", "a", "-n", "--json").out)
    assert (answer["free"], [(one["resource"], one["by"]) for one in answer["holders"]]) == (
        False,
        [("a", "job-1")],
    )
    assert hf.locks.status("a").queue == ()
    hf.locks.release(grant)
    assert say("locks", "wait", "a") == (0, "", "")
    assert hf.locks.list_held() == []


def test_kick(say: Say, hf: Holdfast) -> None:
    hf.locks.acquire(["a", "b"], by="job-1", mode="shared")
    hf.locks.acquire("a", by="job-2", mode="shared")
    ran = say("locks", "kick", "a", "--why", "it hangs", "--by", "job-1")
    assert ran.status == 0
    assert re.fullmatch(r"took a, b from job-1 \(token \d+\)\n", ran.out)
    assert [hold.by for hold in hf.locks.status("a").holds] == ["job-2"]
    [kicked] = json.loads(say("locks", "kick", "a", "--why", "it hangs", "--json").out)["kicked"]
    assert (kicked["by"], kicked["names"]) == ("job-2", ["a"])
    refused = say("token", "check", "a", str(kicked["token"]))
    assert (refused.status, refused.out) == (4, "")
    nobody = say("locks", "kick", "a", "--why", "again")
    assert nobody.status == 1
    assert "holdfast locks status a" in nobody.err
    entries = [json.loads(line) for line in say("log", "--json", "--subject", "a").out.splitlines()]
    assert [one["data"]["why"] for one in entries if one["kind"] == "lock.kicked"] == [
        "it hangs",
        "it hangs",
    ]


def test_token_check(say: Say, hf: Holdfast) -> None:
    token = hf.locks.acquire("a", by="job-1").token
    assert say("token", "check", "a", str(token)) == (0, f"token {token} is in force on a\n", "")
    shown = json.loads(say("token", "check", "a", str(token), "--json").out)
    assert shown == {"resource": "a", "token": token, "in_force": True}
    for name, other in (("a", token + 1), ("b", token), ("a", 0)):
        ran = say("token", "check", name, str(other))
        assert (ran.status, ran.out) == (4, "")
        assert f"token {other} is not in force on {name}" in ran.err


# Looking


def test_status_of_every_shape(say: Say, hf: Holdfast) -> None:
    hf.locks.acquire("alone", by="job-1")
    hf.locks.acquire("timed", by="job-2", ttl_s=3600, process=None)
    hf.locks.acquire("dead", by="job-3", process=a_dead_process())
    with waiting(hf, ["alone", "free"], "job-4", mode="shared"):
        rows = [line.split("\t") for line in say("locks", "status").out.splitlines()]
        by_name = {(row[0], row[1]): row for row in rows}
        assert by_name["alone", "held"][2:4] == ["job-1", "exclusive"]
        assert by_name["alone", "held"][5:7] == [f"{os.getpid()} alive", "with it"]
        assert by_name["alone", "waits 1"][2:4] == ["job-4", "shared"]
        assert by_name["free", "free"][2:] == ["-"] * 6
        assert by_name["free", "waits 1"][2] == "job-4"
        assert by_name["timed", "held"][5] == "none"
        assert by_name["timed", "held"][6].endswith("Z")
        assert by_name["dead", "held"][6] == "over"
        assert all(len(row) == 8 for row in rows)
        shown = json.loads(say("locks", "status", "alone", "nosuch", "--json").out)
        assert [one["name"] for one in shown] == ["alone", "nosuch"]
        assert shown[0]["holds"][0]["token"] == int(by_name["alone", "held"][7])
        assert shown[0]["queue"][0]["position"] == 1
        assert (shown[1]["holds"], shown[1]["queue"]) == ([], [])
    assert say("locks", "status", "nosuch").out.split("\t")[:2] == ["nosuch", "free"]


def test_explain_what_is_free(say: Say, hf: Holdfast) -> None:
    ran = say("locks", "explain", "a")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("a is free; nobody waits for it\n\nWhat to do\n")
    assert "holdfast store info" in ran.out
    shown = json.loads(say("locks", "explain", "a", "--json").out)
    assert (shown["status"]["name"], shown["blockages"]) == ("a", [])


def test_explain_what_is_held_and_waited_for(say: Say, hf: Holdfast) -> None:
    grant = hf.locks.acquire(
        ["a", "b"], by="job-1", process=hf.processes.of(os.getpid(), "make all")
    )
    with waiting(hf, ["a", "c"], "job-2", mode="shared", priority=3):
        shown = say("locks", "explain", "a").out
    lines = shown.splitlines()
    assert re.fullmatch(r"a is held by job-1 \(exclusive\) for .* s; 1 waits for it", lines[0])
    process = f'process {os.getpid()} "make all", alive'
    assert f"      {process}" in lines
    assert f"      ends with its process; token {grant.token}" in lines
    assert "      taken together with b" in lines
    assert f"  a <- job-1 <- {process}" in lines
    assert re.search(
        r"^  1  job-2  shared  .* s  process \d+, alive; priority 3; wants c too$",
        shown,
        re.MULTILINE,
    )
    assert "holdfast locks kick a" in shown.partition("What to do")[2]


def test_explain_a_chain(say: Say, hf: Holdfast) -> None:
    """a is held by job-1, which waits for b, held by job-2, which waits for c, held by job-3."""
    for name, by in (("a", "job-1"), ("b", "job-2"), ("c", "job-3")):
        hf.locks.acquire(name, by=by, ttl_s=600, process=None)
    with waiting(hf, ["b"], "job-1"), waiting(hf, ["c"], "job-2"):
        shown = say("locks", "explain", "a").out
        assert say("locks", "graph").out.splitlines() == [
            "job-3 (no process) holds c",
            "  job-2 (no process, alive) waits for c at position 1 and holds b",
            "    job-1 (no process, alive) waits for b at position 1 and holds a",
        ]
    chain = shown.partition("Chain\n")[2].partition("\n\n")[0].splitlines()
    assert [re.sub(r"\(.* s\)", "(T)", line) for line in chain] == [
        "  a <- job-1 <- no process",
        "    job-1 waits for b (T) <- job-2 <- no process",
        "      job-2 waits for c (T) <- job-3 <- no process",
    ]
    assert "job-3" in shown.partition("What to do")[2]


def test_explain_leads_through_the_worker_and_the_agent(say: Say, hf: Holdfast) -> None:
    job = hf.jobs.register_job(prompt="p", agent="claude", agent_session="tmux:claude-a").job_id
    hf.jobs.pick_pending("tmux:claude-a")
    hf.agents.publish(
        "gpu", backend="claude_headless", tool="claude", manifest_path="/m", session_name="claude-a"
    )
    hf.locks.acquire("a", by=job, ttl_s=600, process=None)
    with waiting(hf, ["a", "b"], "job-2"):
        assert (
            f"  a <- {job} <- worker tmux:claude-a <- agent gpu <- no process\n"
            in say("locks", "explain", "a").out
        )
        shown = say("locks", "explain", "b").out
    chain = shown.partition("Chain\n")[2].partition("\n\n")[0].splitlines()
    assert [re.sub(r"\(.* s\)", "(T)", line) for line in chain] == [
        "  b <- nobody",
        f"    job-2 waits for a (T) <- {job} <- worker tmux:claude-a <- agent gpu <- no process",
    ]
    assert "job-2, first in the queue, also waits for a: holdfast locks explain a" in shown


def test_explain_the_shared_the_dead_the_timed_and_the_far(say: Say, hf: Holdfast) -> None:
    hf.locks.acquire("shared", by="job-1", mode="shared")
    hf.locks.acquire("shared", by="job-2", mode="shared")
    assert (
        "shared is shared by 2 jobs; nobody waits for it" in say("locks", "explain", "shared").out
    )
    dead = a_dead_process()
    hf.locks.acquire("dead", by="job-3", process=dead)
    shown = say("locks", "explain", "dead").out
    assert "dead was held by job-3, whose process is dead; nobody waits for it" in shown
    assert f'dead <- job-3 <- process {dead.pid} "make", dead' in shown
    assert "nothing to do" in shown
    token = hf.locks.acquire("timed", by="job-4", ttl_s=7200, process=None).token
    shown = say("locks", "explain", "timed").out
    assert re.search(r"ends \S+ \S+Z \(in 1 h 59 min\) unless renewed", shown)
    assert f"holdfast locks release {token}" in shown
    far = msgspec.structs.replace(
        hf.processes.current("vlan test"), host_id="another-machine-far-away"
    )
    hf.locks.acquire("far", by="job-5", process=far)
    shown = say("locks", "explain", "far").out
    assert f'process {far.pid} "vlan test", cannot be seen from here, host another-mach' in shown
    assert "presumed alive until" in shown


def test_a_long_queue_is_cut(say: Say, hf: Holdfast) -> None:
    from holdfast.surfaces.cli import lock_text

    hf.locks.acquire("a", by="job-0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock_text, "_QUEUE_SHOWN", 1)
        with waiting(hf, ["a"], "job-1"), waiting(hf, ["a"], "job-2"):
            shown = say("locks", "explain", "a").out
    assert "2 wait for it" in shown
    assert "  and 1 more: holdfast locks status a" in shown
    assert "job-2" not in shown


def test_graph_is_valid_dot(say: Say, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    # As earlier versions took names.
    monkeypatch.setattr(request, "check_new_label", check_label)
    names = ['quo"ted', "back\\slash\\n", "ümlaut \u2192 \u202e", "{}[];->", "plain"]
    for number, name in enumerate(names):
        hf.locks.acquire(name, by=f"job {number}\\", mode="shared" if number else "exclusive")
    hf.locks.acquire("gone", by="dead one", process=a_dead_process())
    with waiting(hf, names[:2], 'wai"ter'):
        drawn = say("locks", "graph", "--format", "dot").out
        shown = json.loads(say("locks", "graph", "--json").out)
        assert shown == json.loads(say("locks", "graph", "--format", "json").out)
    nodes, edges = dot(drawn)
    written_out = {name.replace("\u202e", "\\u202e") for name in names}
    assert {label for node, label in nodes.items() if node.startswith("r")} == written_out | {
        "gone"
    }
    reported = {(nodes[one], nodes[other], label) for one, other, label in edges}
    assert ('quo"ted', "job 0\\", "exclusive") in reported
    assert ("back\\slash\\n", "job 1\\", "shared") in reported
    assert {('wai"ter', name, "waits 1") for name in names[:2]} <= reported
    assert len(reported) == len(shown["edges"])
    assert re.search(r'label="dead one", color=red', drawn)


def dot(text: str) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Read DOT by its grammar, as far as it is used here: labels of nodes, and edges with their
    labels.
    """
    quoted = r'"(?:[^"\\]|\\.)*"'
    value = rf"(?:{quoted}|[A-Za-z]+)"
    attributes = rf"\[((?:\w+={value}(?:, )?)*)\]"
    nodes: dict[str, str] = {}
    edges = []
    lines = text.splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("digraph locks {", "  rankdir=LR;", "}")
    for line in lines[2:-1]:
        found = re.fullmatch(rf"  (\w+)(?: -> (\w+))? {attributes};", line)
        assert found, line
        named = dict(re.findall(rf"(\w+)=({value})", found[3]))
        label = re.sub(r"\\(.)", r"\1", named["label"][1:-1])
        if found[2]:
            edges.append((found[1], found[2], label))
        else:
            nodes[found[1]] = label
    assert {end for edge in edges for end in edge[:2]} <= set(nodes)
    return nodes, edges


def test_an_empty_graph(say: Say, hf: Holdfast) -> None:
    assert say("locks", "graph").out == "Nothing is held and nobody waits.\n"
    assert dot(say("locks", "graph", "--format", "dot").out) == ({}, [])
    assert json.loads(say("locks", "graph", "--format", "json").out) == {
        "edges": [],
        "deadlocks": [],
    }


def test_stats(say: Say, hf: Holdfast) -> None:
    for _ in range(4):
        hf.locks.release(hf.locks.acquire(["a", "b"], by="job-1"))
    hf.locks.acquire("b", by="job-1")
    assert say("locks", "acquire", "b", "--by", "job-2", "-n", "--ttl", "9").status == 5
    hf.locks.statistics()
    rows = {
        row[0]: row[1:]
        for row in (line.split("\t") for line in say("locks", "stats").out.splitlines())
    }
    assert set(rows) == {"a", "b"}
    assert rows["b"][2] == "1"
    assert re.fullmatch(r"[\d.]+ m?s", rows["a"][10])
    [one] = json.loads(say("locks", "stats", "a", "--json").out)
    assert one["resource"] == "a"
    assert sum(one["hold_counts"]) == 4
    assert one["hold_mean_s"] == pytest.approx(one["hold_s"] / 4)
    assert one["hold_p50_s"] <= one["hold_p95_s"]
    assert one["hold_p50_s"] in one["buckets_s"]
    assert (one["wait_mean_s"], one["wait_p50_s"]) == (None, None)
    [none] = json.loads(say("locks", "stats", "nosuch", "--json").out)
    assert (none["grants"], none["hold_mean_s"]) == (0, None)


# Bad input


LONG = "x" * 257
BAD = [
    (["acquire", "a", "--by", "x"], 2, "ttl_s (--ttl)"),
    (["acquire", "a", "--ttl", "9"], 2, "--by"),
    (["acquire", "--by", "x", "--ttl", "9"], 2, "NAME"),
    (["acquire", "", "--by", "x", "--ttl", "9"], 2, "resource"),
    (["acquire", LONG, "--by", "x", "--ttl", "9"], 2, "256 characters"),
    (["acquire", "a\x1b", "--by", "x", "--ttl", "9"], 2, "control characters"),
    (["acquire", "a\udcff", "--by", "x", "--ttl", "9"], 2, "resource"),
    (["acquire", "a", "--by", "", "--ttl", "9"], 2, "job"),
    (["acquire", "a", "--by", LONG, "--ttl", "9"], 2, "256 characters"),
    (["acquire", "a", "--by", "x", "--ttl", "0"], 2, "more than 0 seconds"),
    (["acquire", "a", "--by", "x", "--ttl", "-1"], 2, "more than 0 seconds"),
    (["acquire", "a", "--by", "x", "--ttl", "nan"], 2, "nan is not a number"),
    (["acquire", "a", "--by", "x", "--ttl", "inf"], 2, "more than 0 seconds"),
    (["acquire", "a", "--by", "x", "--ttl", "1e300"], 2, "at most"),
    (["acquire", "a", "--by", "x", "--ttl", "9", "--timeout", "nan"], 2, "nan is not a number"),
    (["acquire", "a", "--by", "x", "--ttl", "9", "--timeout", "-1"], 2, "from 0 on"),
    (["acquire", "a", "--by", "x", "--pid", "999999999"], 1, "no live process 999999999"),
    (["acquire", "a", "--by", "x", "--pid", "0"], 2, "--pid"),
    (["acquire", "a", "--by", "x", "--ttl", "9", "--priority", "9999"], 2, "1000"),
    (["renew", "12"], 4, "stop work"),
    (["renew", "abc"], 2, "abc"),
    (["renew", "12", "--ttl", "0"], 2, "more than 0 seconds"),
    (["renew", "12", "--ttl", "nan"], 2, "nan is not a number"),
    (["release", "12"], 4, "holdfast locks status"),
    (["release", "router-1"], 2, "names and --by"),
    (["release", "12", "13"], 2, "names and --by"),
    (["release"], 2, "TOKEN"),
    (["release", "9" * 5000], 2, "names and --by"),
    (["release", "", "--by", "x"], 2, "resource"),
    (["release", "a", "--by", ""], 2, "job"),
    (["status", LONG], 2, "256 characters"),
    (["status", ""], 2, "resource"),
    (["explain", ""], 2, "resource"),
    (["explain", "a\nb"], 2, "control characters"),
    (["explain"], 2, "NAME"),
    (["graph", "--format", "png"], 2, "png"),
    (["kick", "a", "--why", ""], 2, "reason"),
    (["kick", "a"], 2, "--why"),
    (["kick", "a", "--why", "x"], 1, "nobody holds a"),
    (["kick", "a", "--why", "x", "--by", "y"], 1, "job y does not hold a"),
    (["wait", ""], 2, "resource"),
    (["wait", "a", "-w", "soon"], 2, "soon"),
    (["nosuch"], 2, "nosuch"),
]


@pytest.mark.parametrize(
    ("words", "status", "says"), BAD, ids=[ascii(" ".join(words))[:50] for words, _, _ in BAD]
)
def test_bad_input_gets_one_clear_error(
    say: Say, hf: Holdfast, words: list[str], status: int, says: str
) -> None:
    ran = say("locks", *words)
    assert (ran.status, ran.out) == (status, ""), ran
    assert says in ran.err
    assert "bug" not in ran.err
    assert hf.locks.list_held() == []


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["check", "a", "abc"], 2, "abc"),
        (["check", "", "1"], 2, "resource"),
        (["check", "a"], 2, "TOKEN"),
        (["check", "a", "-1"], 2, "-1"),
        (["check", "a", "9" * 400], 4, "not in force"),
    ],
)
def test_bad_tokens(say: Say, hf: Holdfast, words: list[str], status: int, says: str) -> None:
    ran = say("token", *words)
    assert (ran.status, ran.out) == (status, "")
    assert says in ran.err


def test_a_hold_that_nothing_would_end_is_refused(say: Say, hf: Holdfast) -> None:
    ran = say("holds", "take", "host-7", "--by", "run-1")
    assert (ran.status, ran.out) == (2, "")
    assert "ttl_s (--ttl)" in ran.err
    assert hf.holds.subjects() == {}


def test_odd_names(say: Say, hf: Holdfast) -> None:
    for name in ("my router", "räuter", "--", "-x", "--help", "*"):
        ran = say("locks", "acquire", "--by", "job-1", "--ttl", "60", "--", name)
        assert (ran.status, ran.err) == (0, ""), name
        assert say("locks", "status", "--", name).out.split("\t")[2] == "job-1"
        assert "held by job-1" in say("locks", "explain", "--", name).out
        assert say("token", "check", "--", name, ran.out.strip()).status == 0
        assert say("locks", "release", "--by", "job-1", "--", name).status == 0
    refused = say("locks", "acquire", "--by", "job-1", "--ttl", "60", "\u202eabc")
    assert refused.status == 2 and "U+202E" in refused.err and "\u202e" not in refused.err
    assert say("locks", "status", "\u202eabc").status == 0


# In processes of their own


@pytest.mark.prove
def test_a_token_that_cannot_be_reported_is_released(locks: Bench) -> None:
    acquire = "holdfast locks acquire a --by job-1 --ttl 60"
    for command in (f"{acquire} >/dev/full", f"{acquire} --json >/dev/full"):
        ran = locks.shell(command)
        assert (ran.status, ran.err.count("\n")) == (6, 1)
        assert "released again" in ran.err
        assert locks.nothing_left()
    ran = locks.shell(f"mkfifo p; (: <p) & exec 3>p; wait; {acquire} >&3")
    assert (ran.status, "released again" in ran.err) == (6, True)
    assert locks.nothing_left()
    assert "nothing was done" in locks.shell(f"{acquire} >&-").err
    assert locks.nothing_left()


@pytest.mark.prove
def test_a_closed_pipe_is_no_error(locks: Bench) -> None:
    locks.hf.locks.acquire("a", by="job-1")
    for command in (
        "locks status",
        "locks explain a",
        "locks graph",
        "locks stats",
        "locks --help",
    ):
        ran = locks.shell(f"rm -f p; mkfifo p; (: <p) & exec 3>p; wait; holdfast {command} >&3")
        assert ran == (0, "", ""), command


@pytest.mark.prove
def test_on_a_terminal(locks: Bench) -> None:
    assert "Nothing is held" in locks.on_a_terminal("locks", "status")
    assert "Nothing was locked here yet" in locks.on_a_terminal("locks", "stats")
    locks.hf.locks.acquire("router-1", by="job-1", ttl_s=7200, process=None)
    locks.hf.locks.acquire("router-2", by="tmux:claude-a", mode="shared")
    shown = re.sub(r"\x1b\[\d*m", "", locks.on_a_terminal("locks", "status", columns=80))
    heading, first, second = shown.splitlines()
    assert "resource" in heading
    assert re.match(r"router-1 +held +job-1 +\d+ s +none +in 1 h 59 min", first)
    assert second.split()[:4] == ["router-2", "held,", "shared", "tmux:claude-a"]
    locks.hf.locks.statistics()
    assert "1 grants, 0 waits" in locks.on_a_terminal("locks", "stats", columns=80)
    shown = locks.on_a_terminal("locks", "explain", "router-1")
    assert "router-1 is held by job-1" in shown
    assert "\x1b[1m" in shown


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("verb", [["acquire", "--ttl", "60"], ["wait"]], ids=["acquire", "wait"])
def test_a_signal_while_waiting_leaves_nothing_behind(
    locks: Bench, verb: list[str], number: signal.Signals
) -> None:
    grant = locks.hf.locks.acquire("a", by="job-1")
    process = locks.start("locks", *verb, "a", "--by", "job-2")
    assert "waiting for a: held by job-1" in remark(process)
    process.send_signal(number)
    assert end(process) == (128 + number, "", "")
    assert locks.hf.locks.status("a").queue == ()
    grant.release()
    assert locks.nothing_left()


@pytest.mark.prove
def test_a_script_holds_by_its_own_process(locks: Bench) -> None:
    ran = locks.shell(
        "token=$(holdfast locks acquire a --by job-7 --pid $$); holdfast token check a $token && "
        "holdfast locks release $token"
    )
    assert ran.status == 0, ran
    # One that dies without a release has released all the same.
    assert (
        locks.shell("holdfast locks acquire a --by job-7 --pid $$; kill -9 $$").status
        == -signal.SIGKILL
    )
    assert locks("locks", "run", "-n", "a", "--", "echo", "mine")[:2] == (0, "mine\n")


@pytest.mark.prove
def test_looking_makes_no_store(tmp_path: Path) -> None:
    holdfast = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/state/store.sqlite")
    for words in (["locks", "status"], ["locks", "stats"]):
        assert holdfast(*words) == (0, "", "")
    assert holdfast("locks", "explain", "a").out.startswith("a is free")
    assert holdfast("locks", "graph").status == 0
    assert holdfast("token", "check", "a", "1").status == 4
    assert not (tmp_path / "state").exists()


def test_spans_of_time() -> None:
    from datetime import UTC, datetime, timedelta

    from holdfast.surfaces.cli.lock_text import span

    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for seconds, words in (
        (-5, "0 s"),
        (0.9, "0 s"),
        (1, "1 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (185, "3 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
        (86400 * 400, "400 d"),
    ):
        assert span(begin, begin + timedelta(seconds=seconds)) == words
