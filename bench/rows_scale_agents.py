"""How the cost of an agent grows with the agents in the store."""

import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import holdfast
from bench.measure import Lab, Sample, alone
from bench.report import Row, Scale, growth_verdict
from bench.scale import Growth, p50_s, series_of
from holdfast.domains.agents.records import AGENTS, id_of
from holdfast.operations.page.agents import agent_page

NAME = "scale-agents"

_SIZES = (1, 100, 1000, 10_000)
_QUICK_SIZES = (1, 10, 100)
_BATCH = 1000
_PAGE = 50
_DAY_S = 24 * 3600.0

_CALLS = (
    "Holdfast, publish",
    "Holdfast, refresh",
    "Holdfast, resolve by id",
    "Holdfast, resolve by name",
    f"Holdfast, list {_PAGE}",
    "Holdfast, the page's list",
)
_SCALE = Scale("agents", "milliseconds, less is better", lambda sample: sample.p50_s * 1000)


def measure(lab: Lab) -> list[Row]:
    sizes = _QUICK_SIZES if lab.quick else _SIZES
    with lab.folder() as folder:
        samples = alone(_measure, folder, sizes, lab.quick)
    series = series_of(samples, _CALLS)
    return [
        Row(
            name="scale-agents",
            title="Agents: cost of a call as more are published",
            says="SQLite, one process, each change durable. The page's list shows for each agent "
            "whether it lives, and how many there are; SQLite counts rows by reading them.",
            series=series,
            verdicts=[
                growth_verdict(
                    _SCALE,
                    series,
                    name,
                    since=sizes[-2],
                    at_most=5 if name == _CALLS[-1] else 2,
                    of=p50_s,
                )
                for name in _CALLS
            ],
            kind="scale",
            scale=_SCALE,
            logarithmic=True,
        )
    ]


def _measure(
    folder: Path, sizes: Sequence[int], quick: bool
) -> dict[tuple[str, int], list[Sample]]:
    growth = Growth(quick=quick)
    with holdfast.connect(f"sqlite:{folder}/store.sqlite") as hf:
        model = _publish(hf, "model")
        have = 1
        for size in sizes:
            for begin in range(have, size, _BATCH):
                _fill(hf, model, range(begin, min(begin + _BATCH, size)))
            have = size
            growth.measure(size, _calls(hf, size))
    return growth.samples


def _calls(hf: holdfast.Holdfast, size: int) -> dict[str, Any]:
    chosen, numbers = random.Random(size), count()
    own = _publish(hf, f"own-{size}")

    def name() -> str:
        return _name(chosen.randrange(1, size)) if size > 1 else "model"

    calls = (
        lambda: _publish(hf, f"new-{size}-{next(numbers)}"),
        lambda: hf.agents.refresh(own.agent_id, own.generation_id),
        lambda: hf.agents.resolve(id_of(f"HOLDFAST-{name()}")).unwrap(),
        lambda: hf.agents.resolve(name()).unwrap(),
        lambda: hf.agents.list_agents(limit=_PAGE),
        lambda: agent_page(hf, limit=_PAGE),
    )
    return dict(zip(_CALLS, calls, strict=True))


def _publish(hf: holdfast.Holdfast, name: str) -> holdfast.Agent:
    return hf.agents.publish(
        name,
        backend="local_interactive",
        tool="claude",
        manifest_path=f"/var/lib/agents/{name}/manifest.json",
        session_name=f"agents-{name}",
        lease_s=_DAY_S,
    )


def _fill(hf: holdfast.Holdfast, model: holdfast.Agent, numbers: range) -> None:
    """Write copies of an agent under other names."""

    def put(tx: Any) -> None:
        for number in numbers:
            name = f"HOLDFAST-{_name(number)}"
            agent = replace(
                model,
                agent_id=id_of(name),
                agent_name=name,
                generation_id=f"00000000-0000-4000-8000-{number:012}",
            )
            tx.put(AGENTS, agent.agent_id, agent)

    hf.store.transact(put, scope=[AGENTS], durable=False, timeout_s=60)


def _name(number: int) -> str:
    return f"agent-{number:05}"
