"""The pages about gateways say what there is: every command, route, state and file."""

import re
from pathlib import Path
from types import SimpleNamespace

from holdfast.kernel.limits import GATEWAY_WAIT_MAX_S, QUEUE_DEPTH_MAX, QUEUE_PRUNE_LEAST_S
from holdfast.primitives.queue.records import TRANSITIONS

ROOT = Path(__file__).parents[2]
QUEUE = ROOT / "src" / "holdfast" / "primitives" / "queue"


def _page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_every_transition_of_a_request_is_drawn_with_its_journal_entry() -> None:
    section = (
        _page("state_machines.md")
        .partition("\n## A request to a gateway\n")[2]
        .partition("\n## ")[0]
    )
    drawn = re.findall(r"^ *(\S+) --> ([^:\s]+)", section, re.MULTILINE)
    steps = {
        (before.value, after.value) for before, steps in TRANSITIONS.items() for after in steps
    }
    ends = {(before.value, "[*]") for before, steps in TRANSITIONS.items() if not steps}
    assert sorted(drawn) == sorted(steps | ends | {("[*]", "accepted")})
    documented = {f"request.{state.value}" for state in TRANSITIONS} | {
        "request.readmitted",
        "request.delivered",
    }
    assert set(re.findall(r"request\.\w+", section)) == documented


def test_the_guide_shows_every_command_and_no_other() -> None:
    from holdfast.surfaces.cli.gateway import gateway

    assert set(re.findall(r"holdfast gateway\s(\w+)", _page("gateway.md"))) == set(gateway.commands)


def test_the_guide_shows_every_option_of_serve() -> None:
    from holdfast.surfaces.cli.gateway_serve import serve

    page = _page("gateway.md")
    # What every server and command has is on another page.
    common = {"--store", "--namespace", "--port", "--log-json"}
    options = {
        name for parameter in serve.params for name in parameter.opts if name.startswith("--")
    } - common
    assert [
        name for name in sorted(options) if f"`{name}" not in page and f"{name} " not in page
    ] == []


def test_the_guide_shows_every_route() -> None:
    from holdfast.surfaces.http.gateway import routes

    gateway = SimpleNamespace(queue=SimpleNamespace(store=None))
    handlers = routes(gateway, None, None, detach=lambda: None, prove=str)  # type: ignore[arg-type]
    served = {
        (method, re.sub(r"(request|question)_id:str", "id", path))
        for handler in handlers
        for path in handler.paths
        for method in handler.http_methods
    }
    documented = {
        (method, path.partition("?")[0])
        for method, path in re.findall(r"`(GET|POST|DELETE) (\S+)`", _page("gateway.md"))
    }
    assert documented == served | {("GET", "/schema")}


def test_the_bounds_that_the_guide_names_are_those_of_the_program() -> None:
    page = " ".join(_page("gateway.md").split())
    assert f"At most {QUEUE_DEPTH_MAX:,} may be unfinished" in page
    assert f"what ended within the last {QUEUE_PRUNE_LEAST_S / 3600:g} hours" in page
    assert f"after up to {GATEWAY_WAIT_MAX_S:g} s" in page
