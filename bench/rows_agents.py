"""Finding an agent among ten thousand, by its id and by its name, against reading the one file that
it would be.
"""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import holdfast
from bench import work
from bench.measure import Contender, Lab, ratio
from bench.report import LESS, Row, Verdict
from holdfast.domains.agents import Agent
from holdfast.domains.agents.records import AGENTS, Identity, Runtime, Terminal, id_of, to_file
from holdfast.kernel.store import Store, Tx

NAME = "agents"

_AGENTS = 10_000
_BATCH = 500
_NO_WAIT_S = 0.8


def measure(lab: Lab) -> list[Row]:
    with lab.folder() as folder:
        _fill(folder)
        contenders = [
            Contender(
                "Holdfast, by id",
                "reads",
                lab.race(prepare=_nothing, cast=ById, seconds=_NO_WAIT_S),
            ),
            Contender(
                "Holdfast, by name",
                "reads",
                lab.race(prepare=_nothing, cast=ByName, seconds=_NO_WAIT_S),
            ),
            Contender(
                "one JSON file, by its path",
                "reads",
                lab.race(prepare=_nothing, cast=OneFile, seconds=_NO_WAIT_S),
            ),
        ]
        series = lab.interleave(contenders, shared=folder)
    # By the median of single calls: they are so short that other load of the machine would dominate
    # a sum.
    by_id = ratio(series[0], series[2], lambda sample: sample.p50_s)
    by_name = ratio(series[1], series[2], lambda sample: sample.p50_s)
    return [
        Row(
            name="agents-resolve",
            title=f"Resolve an agent among {_AGENTS:,}",
            says="`agents.resolve` on SQLite checks the name, the record and its lease. By name it "
            "first checks that there is no such id and that only one agent has the name. The "
            "peer opens one `record.json` whose path it knows, parses it, and checks nothing.",
            series=series,
            verdicts=[
                Verdict(
                    "median time, Holdfast to one JSON file",
                    "at most 3",
                    figure,
                    figure.median <= 3,
                    "A name is looked up as an id first, and then in an index of names.",
                    against=LESS,
                    variant=how,
                )
                for how, figure in (("by id", by_id), ("by name", by_name))
            ],
        )
    ]


class _Asking:
    """A registry, and the numbers to ask for in a random order."""

    def __init__(self, folder: Path, number: int) -> None:
        self._hf = holdfast.connect(work.url_of(folder))
        self._agents = self._hf.agents
        self._random = random.Random(number)

    def _ask(self, name_or_id: str) -> bool:
        return self._agents.resolve(name_or_id).record is not None

    def close(self) -> None:
        self._hf.close()


class ById(_Asking):
    """Resolves by id."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder, number)
        self._ids = [id_of(f"HOLDFAST-{_name(n)}") for n in range(_AGENTS)]

    def __call__(self) -> bool:
        return self._ask(self._random.choice(self._ids))


class ByName(_Asking):
    """Resolves by name, as it is typed."""

    def __call__(self) -> bool:
        return self._ask(_name(self._random.randrange(_AGENTS)))


class OneFile:
    """Reads the record of one agent from its file."""

    def __init__(self, folder: Path, number: int) -> None:
        self._paths = [str(_path(folder, id_of(f"HOLDFAST-{_name(n)}"))) for n in range(_AGENTS)]
        self._random = random.Random(number)

    def __call__(self) -> bool:
        with open(self._random.choice(self._paths), "rb") as file:
            return bool(json.loads(file.read())["schema_version"] == 2)

    def close(self) -> None:
        """Nothing is open."""


def _nothing(_: Path) -> None:
    """The folder was written once, for all rounds."""


def _name(number: int) -> str:
    return f"agent-{number}"


def _path(folder: Path, agent_id: str) -> Path:
    return folder / "live_agents" / agent_id / "record.json"


def _fill(folder: Path) -> None:
    agents = [agent(number) for number in range(_AGENTS)]
    with holdfast.connect(work.url_of(folder)) as hf:
        put(hf.store, agents)
    for one in agents:
        path = _path(folder, one.agent_id)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(to_file(one), indent=2, sort_keys=True))


def put(store: Store, agents: list[Agent]) -> None:
    """Put agents into a store, as if each had been published."""
    for begin in range(0, len(agents), _BATCH):

        def body(tx: Tx, batch: list[Agent] = agents[begin : begin + _BATCH]) -> None:
            for one in batch:
                tx.put(AGENTS, one.agent_id, one)

        store.transact(body, scope=[AGENTS], durable=False, timeout_s=60)


def agent(number: int) -> Agent:
    """A live agent with a number in its name."""
    name = f"HOLDFAST-{_name(number)}"
    now = datetime.now(UTC)
    root = f"/var/lib/agents/{name}"
    return Agent(
        agent_id=id_of(name),
        agent_name=name,
        generation_id=f"00000000-0000-4000-8000-{number:012}",
        published_at=now,
        lease_expires_at=now + timedelta(days=1),
        identity=Identity(backend="local_interactive", tool="claude"),
        runtime=Runtime(
            manifest_path=f"{root}/manifest.json",
            session_root=root,
            agent_def_dir="/var/lib/agents/defs",
        ),
        terminal=Terminal(session_name=name),
        token=number + 1,
    )
