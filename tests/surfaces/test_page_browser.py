"""The page in a real browser, before a real `holdfast serve`, with real processes behind it."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from itertools import pairwise
from operator import methodcaller
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from holdfast.domains.jobs import JobStatus
from holdfast.kernel.errors import Fenced
from holdfast.kernel.text import shown
from tests.harness.timeouts import PATIENCE_S, until
from tests.harness.tmux_server import tmux_server
from tests.surfaces import browser as browsers
from tests.surfaces.locking import line
from tests.surfaces.page_stage import PageStage, fill, stage
from tests.surfaces.page_visit import Visit

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.running() as made:
        yield made


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageStage]:
    """One server for the tests that can share it: each uses names of its own."""
    with stage(tmp_path_factory.mktemp("lab")) as world:
        world.serve()
        yield world


@pytest.fixture
def made(lab: PageStage) -> Iterator[PageStage]:
    """The shared one, on which nobody is left over from the test before, whichever that was."""
    yield lab
    lab.end_all()
    # The dead still stand in line, and hold, until somebody asks.
    for left in lab.hf.locks.list_held():
        lab.hf.locks.acquire(left.name, by="next", timeout_s=PATIENCE_S).release()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[PageStage]:
    """A store and a server that no other test sees."""
    with stage(tmp_path) as world:
        yield world


@pytest.fixture
def visit(browser: Browser, made: PageStage) -> Iterator[Visit]:
    opened = Visit(browser, made.link())
    yield opened
    opened.close()


# --- live ---


def test_a_killed_holder_is_succeeded_before_the_eyes_of_the_operator(
    visit: Visit, made: PageStage
) -> None:
    page = visit.page
    expect(page.get_by_text("Nobody waits for anybody.")).to_be_visible()
    holder = made.holder("flash", "router-h")
    made.waiter("verify", "router-h")
    expect(page.locator(".node.job.waits text")).to_have_text("verify")
    expect(page.locator(".edge.wait")).to_have_count(1)
    panel = visit.why("locks", "router-h")
    expect(panel).to_contain_text("router-h ← flash ← process")
    expect(panel).to_contain_text("1. waiter: verify")
    os.kill(holder.pid, signal.SIGKILL)
    expect(panel).to_contain_text("router-h ← verify ← process")
    expect(visit.row("router-h")).to_contain_text("verify")
    visit.view("journal")
    expect(visit.row("lock.holder_died").filter(has_text="router-h")).to_be_visible()


def test_a_hold_that_nobody_waits_for_is_seen_too_and_stays_in_the_timeline(
    visit: Visit, made: PageStage
) -> None:
    page = visit.page
    holder = made.holder("soak", "board-t")
    held = page.locator(".held", has_text="soak held board-t")
    expect(held).to_contain_text("and still does")
    made.lets_go(holder)
    expect(held).to_contain_text("released")


def test_the_graph_shows_chains_from_left_to_right(visit: Visit, made: PageStage) -> None:
    flash = made.holder("flash", "router-1")
    made.holder("soak", "board-7")
    made.waiter("verify", "router-1")
    made.asks(flash, "flash", "board-7")
    nodes = visit.page.locator(".node")
    expect(nodes).to_have_count(5)
    lefts = {
        str(node.locator("text").text_content()): float(
            re.findall(r"translate\(([\d.]+)", node.get_attribute("transform") or "")[0]
        )
        for node in nodes.all()
    }
    chain = ["verify", "router-1", "flash", "board-7", "soak"]
    assert sorted(lefts, key=lambda name: lefts[name]) == chain
    expect(visit.page.locator(".edge.hold")).to_have_count(2)
    visit.page.locator(".node", has_text="soak").focus()
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("#panel")).to_contain_text("soak holds board-7.")
    expect(visit.page.locator("#panel")).to_contain_text("flash wait for what it holds")


def test_a_cycle_is_drawn_as_one(visit: Visit) -> None:
    # A real one stands for an instant only, so the picture is given one.
    found = visit.page.evaluate(
        """async () => {
          const { graph } = await import("/assets/graph.js");
          const edge = (job, resource, position) => ({ job, resource, position, mode: "exclusive", alive: "alive" });
          const edges = [edge("a", "x", null), edge("b", "y", null), edge("a", "y", 1), edge("b", "x", 1), edge("c", "x", 2)];
          const drawn = graph(edges, 600, () => {});
          return [drawn.querySelectorAll(".edge.cycle").length, drawn.querySelectorAll(".node.cycle").length];
        }"""
    )
    assert found == [4, 4]


def test_a_burst_of_news_is_drawn_a_few_times_a_second(visit: Visit, made: PageStage) -> None:
    for number in range(150):
        made.job(f"number {number}", label="tmux:burst")
    pending = made.hf.jobs.counts()[JobStatus.PENDING]
    expect(visit.page.locator("#tab-jobs span")).to_contain_text(f"{pending} pending")
    begun_ms = visit.page.evaluate(
        "performance.getEntriesByType('resource').filter(({name}) => "
        "name.endsWith('/v1/overview')).map((one) => one.startTime)"
    )
    gaps_ms = [later - earlier for earlier, later in pairwise(begun_ms[1:])]
    assert begun_ms and all(gap > 250 for gap in gaps_ms), "each entry was a look of its own"


# --- what an operator does ---


def _waiting(made: PageStage, name: str) -> None:
    made.holder("flash", name)
    made.waiter("verify", name)


def _why_kicked(made: PageStage, name: str) -> str:
    made.until_logged("lock.kicked", name, "flash")
    kicked = [
        entry
        for entry in made.hf.log.tail(100)[0]
        if (entry.kind, entry.subject) == ("lock.kicked", name)
    ]
    return str(kicked[-1].data["why"])


def test_kick_by_click(visit: Visit, made: PageStage) -> None:
    _waiting(made, "router-c")
    panel = visit.why("locks", "router-c")
    panel.get_by_role("button", name="Kick").click()
    dialog = visit.page.get_by_role("dialog")
    expect(dialog).to_contain_text("router-c is taken away from flash at once")
    dialog.get_by_role("button", name="Not now").click()
    expect(dialog).to_be_hidden()
    assert [hold.by for hold in made.hf.locks.status("router-c").holds] == ["flash"], (
        "it was only asked"
    )
    panel.get_by_role("button", name="Kick").click()
    dialog.get_by_role("button", name="Kick").click()
    expect(dialog).to_be_visible()  # without a reason nothing happens
    dialog.get_by_label("Why?").fill("hangs since noon")
    dialog.get_by_role("button", name="Kick").click()
    expect(dialog).to_be_hidden()
    expect(panel).to_contain_text("router-c ← verify")
    assert _why_kicked(made, "router-c") == "hangs since noon"


def test_kick_by_keyboard_alone(visit: Visit, made: PageStage) -> None:
    made.holder("other", "a-first-one")
    _waiting(made, "router-k")
    keyboard = visit.page.keyboard
    keyboard.press("3")
    visit.ready("locks")
    expect(visit.row("router-k")).to_be_visible()
    for _ in range(12):
        if visit.page.evaluate("document.activeElement.id") == "rows-locks":
            break
        keyboard.press("Tab")
    for _ in range(20):
        if visit.page.locator(".row.at", has_text="router-k").count():
            break
        keyboard.press("ArrowDown")
    keyboard.press("Enter")
    expect(visit.page.locator("#panel h2")).to_have_text("router-k")
    keyboard.press("k")
    keyboard.type("by hand")
    keyboard.press("Enter")
    expect(visit.page.locator("#panel")).to_contain_text("router-k ← verify")
    # The journal may tell of it before the answer comes that closes the dialog.
    expect(visit.page.get_by_role("dialog")).to_be_hidden()
    assert _why_kicked(made, "router-k") == "by hand"
    keyboard.press("Escape")
    expect(visit.page.locator("#panel")).to_be_hidden()
    assert visit.page.evaluate("document.activeElement.id") == "rows-locks", (
        "back to where it was opened from"
    )


def test_requeue_by_click_and_cancel_by_keyboard(visit: Visit, made: PageStage) -> None:
    job = made.job("sort the list", label="tmux:z")
    made.hf.jobs.pick_pending("tmux:z", holder=made.hf.processes.current())
    panel = visit.why("jobs", "sort the list")
    expect(panel).to_contain_text("running")
    panel.get_by_role("button", name="Requeue").click()
    visit.page.get_by_role("dialog").get_by_role("button", name="Requeue").click()
    expect(panel).to_contain_text(
        "It waits until a worker with the label tmux:z picks it. It was begun before"
    )
    dialog = visit.page.get_by_role("dialog")
    expect(dialog).to_be_hidden()
    assert made.hf.jobs.get_job(job.job_id).status is JobStatus.PENDING
    visit.page.keyboard.press("c")
    expect(dialog).to_contain_text(f"{job.job_id} ends as cancelled.")
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    expect(panel).to_contain_text("It was cancelled.")
    assert made.hf.jobs.get_job(job.job_id).status is JobStatus.CANCELLED
    expect(visit.row("sort the list")).to_contain_text("cancelled")


def test_a_job_that_went_on_meanwhile_is_not_put_back(visit: Visit, made: PageStage) -> None:
    made.job("third", label="tmux:w")
    seen = made.hf.jobs.pick_pending("tmux:w", holder=made.hf.processes.current())
    assert seen is not None
    panel = visit.why("jobs", "third")
    panel.get_by_role("button", name="Requeue").click()
    made.hf.jobs.requeue(seen.job_id)
    now = made.hf.jobs.pick_pending("tmux:w", holder=made.hf.processes.current())
    assert now is not None and now.job_id == seen.job_id
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Requeue").click()
    expect(dialog.get_by_role("alert")).to_contain_text("current attempt")
    assert made.hf.jobs.get_job(seen.job_id).token == now.token
    visit.page.keyboard.press("Escape")


def test_cancel_by_click_and_requeue_by_keyboard(visit: Visit, made: PageStage) -> None:
    made.job("first", label="tmux:x")
    made.job("second", label="tmux:y")
    running = made.hf.jobs.pick_pending("tmux:y", holder=made.hf.processes.current())
    assert running is not None
    panel = visit.why("jobs", "first")
    panel.get_by_role("button", name="Cancel").click()
    visit.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(panel).to_contain_text("It was cancelled.")
    visit.row("second").click()
    expect(panel).to_contain_text("A worker has it")
    visit.page.keyboard.press("r")
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    expect(panel).to_contain_text("It was begun before")
    assert made.hf.jobs.get_job(running.job_id).status is JobStatus.PENDING


def test_a_failed_job_is_retried_by_click_and_its_late_verdict_shown(
    visit: Visit, made: PageStage
) -> None:
    job = made.job("late work", label="tmux:v")
    picked = made.hf.jobs.pick_pending("tmux:v")
    assert picked is not None
    made.hf.jobs.cancel(job.job_id)
    with contextlib.suppress(Fenced):
        made.hf.jobs.update_status(job.job_id, "completed", token=picked.token, result="42 apples")
    panel = visit.why("jobs", "late work")
    expect(panel).to_contain_text("Came too late")
    expect(panel).to_contain_text("42 apples")
    expect(visit.row("late work")).to_contain_text("late: completed")
    panel.get_by_role("button", name="Retry").click()
    visit.page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    expect(panel).to_contain_text("It waits until a worker with the label tmux:v picks it.")
    assert made.hf.jobs.get_job(job.job_id).status is JobStatus.PENDING


def test_a_refusal_is_shown_in_the_servers_words(visit: Visit, made: PageStage) -> None:
    job = made.job("too late")
    panel = visit.why("jobs", "too late")
    panel.get_by_role("button", name="Cancel").click()
    made.hf.jobs.cancel(job.job_id)
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog.get_by_role("alert")).to_contain_text(job.job_id)
    expect(dialog.get_by_role("alert")).to_contain_text("cancelled")
    visit.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


@pytest.fixture
def blocked(made: PageStage, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A gateway whose agent was replaced while a request waited: the agent, and the request's
    id.
    """
    agent = f"agent-{request.node.name.rpartition('_')[2]}"
    with tmux_server() as tmux:
        tmux.listen(agent)
        # Quiet alone is no sign of an end where the machine is busy: the listener may not have got
        # its turn.
        rest = ("--quiet-ms", "150", "--ready-regex", "^ready> ?$")
        adapter = (
            "--adapter",
            "tmux",
            "--session",
            agent,
            "--socket-path",
            str(tmux.socket),
            *rest,
        )
        first = made.begin("gateway", "serve", agent, *adapter)
        line(first)
        client = made.hf.gateway(agent)
        client.prompt("work")
        old = client.prompt("an old wish")["request_id"]
        until(lambda: tmux.heard() == [b"work"])
        first.kill()
        first.wait()
        tmux.replace(agent)
        line(made.begin("gateway", "serve", agent, *adapter))
        yield agent, old


def test_reconcile_by_click(blocked: tuple[str, str], visit: Visit, made: PageStage) -> None:
    visit.page.locator(".needs button", has_text=f"gateway of {blocked[0]}").click()
    panel = visit.page.locator("#panel")
    expect(panel).to_contain_text("an old wish")
    panel.get_by_role("button", name="Discard").click()
    dialog = visit.page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 request of an earlier instance ends as failed")
    dialog.get_by_role("button", name="Discard").click()
    expect(panel).to_contain_text("discarded")
    expect(panel).to_contain_text("It accepts requests")
    assert made.hf.gateway(blocked[0]).request(blocked[1])["error_code"] == "discarded"


def test_reconcile_by_keyboard(blocked: tuple[str, str], visit: Visit, made: PageStage) -> None:
    keyboard = visit.page.keyboard
    keyboard.press("5")
    visit.ready("gateways")
    expect(visit.row(blocked[0])).to_contain_text("blocked: decide")
    visit.page.locator("#rows-gateways").focus()
    while not visit.page.locator(".row.at", has_text=blocked[0]).count():
        keyboard.press("ArrowDown")
    keyboard.press("Enter")
    expect(visit.page.locator("#panel")).to_contain_text("an old wish")
    keyboard.press("r")
    expect(visit.page.get_by_role("dialog")).to_contain_text("given to the new one (epoch 2)")
    keyboard.press("Tab")
    keyboard.press("Enter")
    expect(visit.page.locator("#panel")).to_contain_text("completed")
    assert made.hf.gateway(blocked[0]).request(blocked[1])["state"] == "completed"
    expect(visit.row(blocked[0])).to_contain_text("open")


def test_a_request_that_waits_is_cancelled(visit: Visit, made: PageStage) -> None:
    line(made.begin("gateway", "serve", "slow", "--adapter", "command", "--", "sleep", "600"))
    client = made.hf.gateway("slow")
    client.prompt("work")
    waits = client.prompt("never mind")["request_id"]
    panel = visit.why("gateways", "slow")
    panel.locator("li", has_text="never mind").get_by_role("button", name="Cancel").click()
    visit.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(panel.locator("li", has_text="never mind")).to_contain_text("cancelled")
    assert client.request(waits)["error_code"] == "cancelled"


def test_a_gateway_that_was_stopped_does_not_count_as_open(
    browser: Browser, alone: PageStage
) -> None:
    process = alone.begin("gateway", "serve", "gone", "--adapter", "command", "--", "cat")
    line(process)
    process.terminate()
    assert process.wait() == 0
    visit = Visit(browser, alone.serve())
    expect(visit.page.locator("#tab-gateways")).to_contain_text("none open")
    visit.close()


# --- little, much, and nothing at all ---


def test_an_empty_store(browser: Browser, alone: PageStage) -> None:
    visit = Visit(browser, alone.serve())
    expect(visit.page.get_by_text("Nothing needs you.")).to_be_visible()
    expect(visit.page.get_by_text("Nothing was held")).to_be_visible()
    for view, words in (
        ("agents", "No agents here."),
        ("locks", "Nothing is held, and nobody waits."),
        ("jobs", "No jobs."),
        ("gateways", "No gateway on this machine."),
        ("workflows", "No workflows."),
        ("journal", "Nothing has happened yet."),
    ):
        visit.view(view)
        expect(visit.page.get_by_text(words)).to_be_visible()
    visit.close()


def test_ten_thousand_of_each(browser: Browser, alone: PageStage) -> None:
    fill(alone.hf, 10_000)
    visit = Visit(browser, alone.serve())
    page = visit.page
    for view, first, last in (
        ("jobs", "number 9999", "number 0"),
        ("agents", "agent-0", "agent-09999"),
        ("locks", "lock-00000", "lock-09999"),
    ):
        visit.view(view)
        expect(page.locator("#counted")).to_contain_text("10,000")
        expect(visit.row(first).first).to_be_visible()
        page.locator(f"#rows-{view}").focus()
        page.keyboard.press("End")
        expect(page.locator(".row.at")).to_have_attribute("aria-posinset", "10000")
        expect(page.locator(".row.at")).to_contain_text(last)
        assert page.locator(".row").count() < 80, "only what is seen is in the document"
        page.keyboard.press("Home")
        expect(visit.row(first).first).to_be_visible()
    visit.view("jobs")
    page.keyboard.press("/")
    page.keyboard.type("number 77")
    expect(visit.row("number 7799")).to_be_visible()
    expect(visit.row("number 9999")).to_have_count(0)
    visit.close()


def _filter(visit: Visit, words: str) -> Locator:
    visit.page.keyboard.press("/")
    visit.page.keyboard.type(words)
    return visit.page.locator("#filter")


def test_esc_empties_the_filter_and_shows_all_again(visit: Visit, made: PageStage) -> None:
    """The box was empty, and the list was still filtered."""
    made.holder("flash", "router-e1", "router-e2")
    visit.view("locks")
    expect(visit.row("router-e")).to_have_count(2)
    box = _filter(visit, "router-e2")
    expect(visit.row("router-e1")).to_have_count(0)
    visit.page.keyboard.press("Escape")
    expect(box).to_have_value("")
    expect(box).not_to_be_focused()
    expect(visit.row("router-e")).to_have_count(2)
    # Again and again; also before the list has followed.
    for _ in range(3):
        _filter(visit, "no such thing")
        visit.page.keyboard.press("Escape")
        visit.page.keyboard.press("Escape")
    expect(visit.row("router-e")).to_have_count(2)


@pytest.mark.parametrize("words", ["%", "\\", "a&b=c#d", "<b>", "'\"", "ü 漢 🙂", ".*", "x" * 300])
def test_a_filter_that_nothing_matches_says_so_and_not_that_there_is_nothing(
    visit: Visit, made: PageStage, words: str
) -> None:
    made.holder("flash", "router-f")
    for view, there in (("locks", "router-f"), ("jobs", "")):
        visit.view(view)
        box = _filter(visit, words)
        expect(visit.page.locator(".none")).to_contain_text(
            f"Nothing matches “{box.input_value().strip()}”."
        )
        expect(visit.page.locator(".none")).not_to_contain_text("Nothing is held")
        visit.page.keyboard.press("Escape")
        if there:
            expect(visit.row(there)).to_be_visible()
    expect(visit.page.locator("#link")).to_contain_text("live")


def test_an_answer_to_an_earlier_filter_is_not_shown(visit: Visit, made: PageStage) -> None:
    """The slower of two answers was shown, whichever request was the last."""
    made.holder("flash", "slow-one", "quick-one")
    visit.view("locks")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    visit.page.route("**/v1/overview/locks*words=slow*", hold)
    _filter(visit, "slow")
    until(lambda: visit.page.evaluate("1") and bool(held))
    visit.page.locator("#filter").fill("quick")
    expect(visit.row("slow-one")).to_have_count(0)
    expect(visit.row("quick-one")).to_be_visible()
    visit.page.evaluate(
        """() => {
          window.seen = false;
          const look = () => (window.seen ||= document.querySelector("main").textContent.includes("slow-one"));
          new MutationObserver(look).observe(document.querySelector("main"), { subtree: true, childList: true });
        }"""
    )
    for route in held:
        with visit.page.expect_response(route.request.url):
            route.continue_()
    with visit.page.expect_response("**/v1/overview/locks*words=quick*"):
        pass
    expect(visit.row("quick-one")).to_be_visible()
    assert visit.page.evaluate("window.seen") is False


def _fail(made: PageStage, many: int) -> list[str]:
    failed = []
    for number in range(many):
        job = made.job(f"failing {number}", label="tmux:f")
        picked = made.hf.jobs.pick_pending("tmux:f", holder=made.hf.processes.current())
        assert picked is not None
        made.hf.jobs.update_status(job.job_id, "error", token=picked.token, error="exit status 2")
        failed.append(job.job_id)
    return failed


def test_failed_jobs_are_all_counted_shown_and_given_up(browser: Browser, alone: PageStage) -> None:
    """Of 22 failed jobs three were shown, and none an hour later."""
    failed = _fail(alone, 22)
    visit = Visit(browser, alone.serve())
    page = visit.page
    expect(page.locator("#tab-now i")).to_have_text("22")
    needs = page.locator(".needs li")
    expect(needs).to_have_count(6)
    expect(page.locator(".needs header p")).to_have_text("22 things")
    needs.last.get_by_role("button", name="17 more jobs ended in error: show all 22").click()
    visit.ready("jobs")
    expect(page.get_by_role("button", name="error", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.locator("#counted")).to_have_text("22 of 22 jobs")
    page.go_back()
    visit.ready("now")
    page.go_forward()
    visit.ready("jobs")
    expect(page.get_by_role("button", name="error", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    panel = page.locator("#panel")
    visit.row("failing 21").click()
    panel.get_by_role("button", name="Give up").click()
    page.get_by_role("dialog").get_by_role("button", name="Give up").click()
    expect(visit.row("failing 21")).to_have_count(0)
    assert alone.hf.jobs.get_job(failed[21]).status is JobStatus.CANCELLED
    expect(page.locator("#tab-now i")).to_have_text("21")
    visit.close()


def test_agents_have_their_names_everywhere(browser: Browser, alone: PageStage) -> None:
    """The journal named them by 32 hex digits."""
    manifest = alone.folder / "manifest.json"
    manifest.write_text("{}")
    agents = [
        alone.hf.agents.publish(
            name, backend="command", tool="codex", manifest_path=str(manifest), agent_id=agent_id
        )
        for name, agent_id in (
            ("reviewer", None),
            ("planner", "0123456789abcdef0123456789abcdef"),
        )
    ]
    for agent in agents:
        # As an older program wrote it.
        alone.hf.store.transact(
            methodcaller(
                "append", actor="t", kind="agent.refreshed", subject=agent.agent_id, data={}
            ),
            scope=[],
        )
        line(alone.begin("gateway", "serve", agent.agent_name, "--adapter", "command", "--", "cat"))
    visit = Visit(browser, alone.serve())
    page = visit.page
    for view in ("now", "agents", "gateways", "journal"):
        visit.view(view)
        for name in ("reviewer", "planner"):
            expect(page.locator("main").get_by_text(name).first).to_be_visible()
        for agent in agents:
            assert agent.agent_id not in page.locator("main").inner_text(), view
    visit.row("agent.refreshed").first.click()
    expect(page.locator("#panel")).to_contain_text("agent.refreshed of planner")
    expect(page.locator("#panel dl")).to_contain_text(agents[1].agent_id)
    visit.why("gateways", "planner")
    expect(page.locator("#panel h2")).to_have_text("gateway of planner")
    visit.close()


# --- the server goes ---


def test_a_dead_server_is_shown_as_such_and_recovered_from(
    browser: Browser, alone: PageStage
) -> None:
    visit = Visit(browser, alone.serve())
    page = visit.page
    alone.job("before")
    visit.view("jobs")
    expect(visit.row("before")).to_be_visible()
    alone.kill_server()
    alert = page.locator("#away")
    expect(alert).to_contain_text(re.compile(r"The server is not answering since \d\d:\d\d:\d\d"))
    expect(page.locator("#link")).to_contain_text("not answering")
    expect(visit.row("before")).to_be_visible()
    alone.job("meanwhile")
    alone.serve()
    expect(alert).to_be_hidden()
    expect(page.locator("#link")).to_contain_text("live")
    expect(visit.row("meanwhile")).to_be_visible()
    visit.close()


def test_a_lost_store_is_reported_in_the_servers_words(browser: Browser, alone: PageStage) -> None:
    """The page said that the server does not answer, and somebody looked for a dead server."""
    visit = Visit(browser, alone.serve())
    alone.job("before")
    visit.view("jobs")
    expect(visit.row("before")).to_be_visible()
    store = alone.folder / "state" / "store.sqlite"
    store.rename(store.with_name("elsewhere"))
    # It stays so, even after the stream has ended and started again.
    for _ in range(2):
        with visit.page.expect_response("**/v1/events") as refused:
            pass
        assert refused.value.status == 503
        expect(visit.page.locator("#away")).to_contain_text("The server answers, but: ")
        expect(visit.page.locator("#away")).to_contain_text(str(store))
    expect(visit.row("before")).to_be_visible()
    store.with_name("elsewhere").rename(store)
    expect(visit.page.locator("#away")).to_be_hidden()
    alone.job("after")
    expect(visit.row("after")).to_be_visible()
    visit.close()


@pytest.mark.parametrize("part", ["page.js", "graph.js", "page.css"])
def test_a_page_of_which_a_part_did_not_come_is_loaded_again(visit: Visit, part: str) -> None:
    """It stood there for ever, as if it were connecting. What loads it again is a part of its own
    text, and cannot be lost.
    """
    page, lost = visit.page, [1, 2]
    assert not any("begin.js" in url for url in visit.asked)

    def lose(route: Route) -> None:
        if lost:
            lost.pop()
            route.abort()
        else:
            route.continue_()

    page.route(f"**/assets/{part}", lose)
    page.reload()
    visit.ready("now")
    assert lost == [] and len(visit.bugs) == 2
    lost += range(9)
    page.reload()
    expect(page.locator("#link")).to_contain_text("not loaded: load this page again")
    lost.clear()
    page.reload()
    visit.ready("now")
    visit.bugs.clear()
    page.evaluate("window.same = true")


def test_an_ended_session_names_the_way_back(visit: Visit, made: PageStage) -> None:
    visit.page.evaluate(
        "sessionStorage.session = sessionStorage.session.replace(/.$/, (last) => (last === '0' ? "
        "'1' : '0'))"
    )
    visit.page.reload()
    expect(visit.page.locator("#away")).to_contain_text(
        "does not know this page's session any more"
    )
    expect(visit.page.locator("#away")).to_contain_text("holdfast serve --link")
    assert visit.page.evaluate("sessionStorage.session") is None
    # Another link, pasted into the same window, lets it in again.
    visit.page.goto(made.link())
    visit.ready("now")
    visit.page.evaluate("window.same = true")


# --- what is shown, and to whom ---


def test_data_is_text_and_secrets_are_not_there(visit: Visit, made: PageStage) -> None:
    evil = '<img src=x onerror="window.evil=1"><script>window.evil=1</script>'
    job = made.job(evil, label=evil[:60])
    made.holder(evil[:40], evil[:50])
    panel = visit.why("jobs", "onerror")
    expect(panel.locator("pre").first).to_have_text(evil)
    visit.view("locks")
    visit.row("onerror").click()
    expect(panel.locator("h2")).to_have_text(evil[:50])
    assert visit.page.evaluate("window.evil") is None
    assert job.auth_token and job.auth_token not in visit.page.content()
    foreign = [url for url in visit.asked if not url.startswith(f"http://127.0.0.1:{made.port}/")]
    assert foreign == []


def test_invisible_characters_are_written_out(visit: Visit, made: PageStage) -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "rm -rf")
    made.job(f"sort\u200b it{hidden} \u202e⚠\ufe0f")
    panel = visit.why("jobs", "sort\\u200b it")
    expect(panel.locator("pre").first).to_have_text(shown(f"sort\u200b it{hidden} \u202e⚠\ufe0f"))
    expect(panel.locator("pre").first).to_contain_text("sort\\u200b it\\U000e0072")
    assert not set(visit.page.content()) & {"\u200b", "\u202e", *hidden}


def test_the_page_and_the_command_line_write_the_same_out(visit: Visit) -> None:
    """Each character by itself, and within emoji and what pretends to be one."""
    texts = [
        "⚠\ufe0f",
        "a\ufe0f",
        "1\ufe0f\u20e3",
        "1\ufe0f",
        "👩\u200d🚀",
        "a\u200db",
        "🚀\u200d",
        "⚠\ufe0f\ufe0f",
        "\x1b[31m\n\t",
    ]
    texts += [
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "🏴\U000e0041\U000e007f",
    ]
    texts += [
        chr(code)
        for code in range(0x110000)
        if not 0xD800 <= code < 0xE000 and shown(chr(code)) != chr(code)
    ][:3000]
    asked = (
        "async (texts) => { const { shown } = await import('/assets/text.js'); return "
        "texts.map(shown); }"
    )
    assert visit.page.evaluate(asked, texts) == [shown(text) for text in texts]
    kept = """async () => {
      const { shown } = await import('/assets/text.js');
      const all = Array.from({ length: 0x110000 }, (_, code) => String.fromCodePoint(code));
      return all.filter((one) => shown(one) !== one).length;
    }"""
    assert visit.page.evaluate(kept) == sum(
        shown(chr(code)) != chr(code) for code in range(0x110000)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window_in_either_light(browser: Browser, made: PageStage, scheme: str) -> None:
    _waiting(made, "router-n")
    made.job(
        "a prompt that is much too long for a narrow window, and goes on for quite a while after "
        "its end" * 3
    )
    visit = Visit(browser, made.link(), color_scheme=scheme, reduced_motion="reduce")
    page = visit.page
    page.set_viewport_size({"width": 360, "height": 720})
    for view in ("now", "agents", "locks", "jobs", "gateways", "workflows", "journal"):
        visit.view(view)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
    visit.why("locks", "router-n")
    box = page.locator("#panel").bounding_box()
    assert box is not None and (box["width"], box["x"]) == (360, 0)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(14, 20, 24)") == (scheme == "dark")
    assert page.evaluate("getComputedStyle(document.querySelector('.dot')).animationName") == "none"
    visit.close()
