"""What an agent asks, before the eyes of an operator: seen, and answered by a button that asks
once.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.gateway_mirror import GatewayMirror
from holdfast.domains.agents import GatewayAddress
from holdfast.domains.gateway import AgentState
from holdfast.runtime.configuration import gateway_root
from tests.harness.timeouts import until
from tests.surfaces import browser as browsers
from tests.surfaces.gateway_http import TOKEN, Served, served
from tests.surfaces.page_stage import PageStage, stage
from tests.surfaces.page_visit import Visit

pytestmark = pytest.mark.prove


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.running() as made:
        yield made


@pytest.fixture
def made(tmp_path: Path) -> Iterator[PageStage]:
    with stage(tmp_path) as world:
        world.serve()
        yield world


@pytest.fixture
def visit(browser: Browser, made: PageStage) -> Iterator[Visit]:
    opened = Visit(browser, made.link())
    yield opened
    opened.close()


@pytest.fixture
def gate(made: PageStage) -> Iterator[Served]:
    with behind_a_gateway(made) as world:
        yield world


@contextmanager
def behind_a_gateway(made: PageStage, name: str = "gpu") -> Iterator[Served]:
    """A published agent whose gateway publishes its states, as a real one does."""
    folder = GatewayFolder(gateway_root(made.hf.settings, name))
    folder.prepare()
    with served(folder.root, name=name) as world:
        folder.token.write_text(TOKEN)
        mirror = GatewayMirror(world.gateway, folder, host="127.0.0.1", port=world.port)
        mirror.start()
        agent = made.hf.agents.publish(
            name,
            backend="command",
            tool="claude",
            manifest_path=str(made.folder / "manifest.json"),
            holder=made.hf.processes.of(os.getpid()),
        )
        where = GatewayAddress(
            host="127.0.0.1",
            port=world.port,
            state_path=str(folder.state_path),
            protocol_version="v1",
        )
        made.hf.agents.attach_gateway(agent.agent_id, agent.generation_id, where)
        try:
            yield world
        finally:
            mirror.close()


def test_a_question_is_seen_and_allowed_by_a_button_that_asks_once(
    visit: Visit, gate: Served
) -> None:
    page = visit.page
    gate.agent.activity = "Bash: make flash"
    gate.agent.asks(
        "q1", subject="Bash: make flash BOARD=7", detail="make flash BOARD=7\n# on psu-3"
    )
    need = page.locator(".needs li", has_text="gpu asks: Bash: make flash BOARD=7")
    expect(need).to_be_visible()
    visit.view("agents")
    expect(visit.row("gpu").locator(".pill")).to_have_text("asking")
    visit.row("gpu").click()
    panel = page.locator("#panel")
    expect(panel).to_contain_text("make flash BOARD=7\n# on psu-3")
    panel.get_by_role("button", name="Allow").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("Bash: make flash BOARD=7")
    dialog.get_by_role("button", name="Not now").click()
    assert gate.agent.replies == []
    panel.get_by_role("button", name="Allow").click()
    dialog.get_by_role("button", name="Allow").click()
    expect(dialog).to_have_count(0)
    expect(panel).not_to_contain_text("It asks")
    assert gate.agent.replies == [("q1", "allow")]
    expect(visit.row("gpu").locator(".pill")).to_have_text("ready")
    [noted] = [
        entry.data
        for entry in gate.store.journal().entries
        if entry.kind == "gateway.question_answered"
    ]
    assert (noted["by"], noted["claimed"], noted["reply"]) == ("page", True, "allow")


def test_a_question_is_denied_or_answered_with_a_text(visit: Visit, gate: Served) -> None:
    page = visit.page
    gate.agent.asks("q1")
    gate.agent.asks("q2", subject="Edit: settings.toml")
    panel = visit.why("gateways", "gpu")
    first, second = (panel.locator(".asked > li").nth(number) for number in (0, 1))
    expect(second).to_contain_text("Edit: settings.toml")
    second.get_by_role("button", name="Deny").click()
    page.locator("dialog").get_by_role("button", name="Deny").click()
    expect(panel.locator(".asked > li")).to_have_count(1)
    first.get_by_role("button", name="Answer").click()
    page.locator("dialog input").fill("use board 8")
    page.locator("dialog").get_by_role("button", name="Answer").click()
    expect(panel.locator(".asked > li")).to_have_count(0)
    assert gate.agent.replies == [("q2", "deny"), ("q1", "use board 8")]


def test_a_question_that_is_over_is_refused_in_the_dialog(visit: Visit, gate: Served) -> None:
    page = visit.page
    gate.agent.asks("q1")
    panel = visit.why("gateways", "gpu")
    panel.get_by_role("button", name="Allow").click()
    gate.agent.questions, gate.agent.state = (), AgentState.READY
    page.locator("dialog").get_by_role("button", name="Allow").click()
    expect(page.locator("dialog .problem")).to_contain_text("the agent does not ask q1 now")
    page.locator("dialog").get_by_role("button", name="Not now").click()
    assert gate.agent.replies == []


def test_a_draft_and_a_dialog_of_its_own_need_somebody(visit: Visit, gate: Served) -> None:
    page = visit.page
    gate.agent.state, gate.agent.detail = AgentState.DRAFT, "somebody's text is in its input box"
    expect(page.locator(".needs li", has_text="gpu has a draft: somebody's text")).to_be_visible()
    gate.agent.state, gate.agent.detail = AgentState.ASKING, "it asks whether to trust its folder"
    expect(page.locator(".needs li", has_text="it asks whether to trust")).to_be_visible()
    panel = visit.why("gateways", "gpu")
    expect(panel).to_contain_text("in the agent's own terminal")
    expect(panel.get_by_role("button", name="Allow")).to_have_count(0)


def test_a_waiting_job_is_answered_on_the_page(visit: Visit, made: PageStage) -> None:
    page = visit.page
    job = made.job("Flash the board", "tmux:claude-a")
    picked = made.hf.jobs.pick_pending("tmux:claude-a", holder=made.hf.processes.current())
    assert picked is not None
    made.hf.job_events.publish(
        job.job_id, "permission_required", detail="may it delete build/?", token=picked.token
    )
    panel = visit.why("jobs", job.job_id)
    expect(panel).to_contain_text("may it delete build/?")
    panel.get_by_role("button", name="Allow").click()
    page.locator("dialog").get_by_role("button", name="Allow").click()
    expect(page.locator("dialog")).to_have_count(0)
    until(lambda: made.hf.job_events.answer_to(job.job_id, 1) is not None)
    answer = made.hf.job_events.answer_to(job.job_id, 1)
    assert answer == {"answer": "allow", "question": 1, "by": "page", "claimed": True}
    expect(panel).not_to_contain_text("It asks")


def test_a_request_shows_who_sent_it(visit: Visit, gate: Served) -> None:
    gate.prompt("say hello", sender="boss")
    panel = visit.why("gateways", "gpu")
    expect(panel).to_contain_text("from boss, as claimed: say hello")
