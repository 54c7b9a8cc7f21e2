"""`python -m bench.capacity`: measure what one PostgreSQL carries, and write it into
docs/capacity.md, with a picture. Takes about a minute and a half.
"""

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import machine, pictures, queueing, servers, work_postgres
from bench.measure import Contender, Lab, Series
from bench.pictures import Chart, number

_WORKERS = (1, 2, 4, 8, 16, 32)
_IDLE = (0, 50, 150)
_BESIDE = 8
"""The workers beside idle connections."""
_JOBS = 12_000
_SECONDS = 1.0
_ROUNDS = 2
_BEGIN, _END = "<!-- measured by python -m bench.capacity -->", "<!-- end of the measured part -->"
_CHECKOUT = Path(__file__).resolve().parent.parent
_PAGE = _CHECKOUT / "docs" / "capacity.md"
_PICTURE = _CHECKOUT / "docs" / "pictures" / "capacity.svg"


def main() -> None:
    """Measure, and rewrite the measured part of the page."""
    # On the file system of the checkout: in a temporary folder in memory every sync would be free.
    root = Path(tempfile.mkdtemp(prefix=".bench-tmp-", dir=_CHECKOUT))
    try:
        lab = Lab(root, rounds=_ROUNDS, quick=False)
        facts = machine.facts(lab, cleared="")
        with servers.postgres() as address:
            if address is None:
                raise SystemExit("no PostgreSQL here: apt-get install postgresql")
            claims = lab.interleave([_claims(lab, address, workers) for workers in _WORKERS])
            jobs = lab.interleave([_jobs(lab, address, workers) for workers in _WORKERS])
            idle = [_beside(lab, address, connections) for connections in _IDLE]
    finally:
        shutil.rmtree(root)
    facts["PostgreSQL"] = f"{servers.versions()['postgres']}, its default settings, on this machine"
    before, _, rest = _PAGE.read_text().partition(_BEGIN)
    lines = [_BEGIN, "", *_measured(claims, jobs, idle, facts), "", _END]
    _PAGE.write_text(before + "\n".join(lines) + rest.partition(_END)[2])
    _PICTURE.write_text(_picture(claims, jobs))
    print("\n".join(lines))


def _claims(lab: Lab, address: str, workers: int, name: str = "") -> Contender:
    prepare = partial(work_postgres.prepare_jobs, address=address, jobs=_JOBS)
    cast = partial(work_postgres.Claim, address=address)
    race = lab.race(prepare=prepare, cast=cast, processes=workers, seconds=_SECONDS)
    return Contender(name or f"{workers} workers", "", race)


def _jobs(lab: Lab, address: str, workers: int) -> Contender:
    opens = partial(queueing.HoldfastPostgres, address=address)
    prepare = partial(queueing.prepare, opens=opens)
    race = lab.race(prepare=prepare, cast=opens, processes=workers, seconds=_SECONDS)
    return Contender(f"{workers} workers", "", race)


def _beside(lab: Lab, address: str, connections: int) -> Series:
    """Claims while so many other connections are open and do nothing."""
    import psycopg

    with ExitStack() as idle:
        for _ in range(connections):
            idle.enter_context(psycopg.connect(address, autocommit=True))
        name = f"{connections} idle connections"
        return lab.interleave([_claims(lab, address, _BESIDE, name)])[0]


def _rate(series: Series) -> float:
    return series.spread(lambda sample: sample.rate).median


def _measured(
    claims: Sequence[Series],
    jobs: Sequence[Series],
    idle: Sequence[Series],
    facts: dict[str, str],
) -> list[str]:
    return [
        "![Claims and jobs a second by workers](pictures/capacity.svg)",
        "",
        "| workers, each a process with a connection | claims a second | a claim takes (median) | "
        "jobs a second, from end to end |",
        "| --- | --- | --- | --- |",
        *(
            f"| {workers} | {number(_rate(claim))} | "
            f"{number(claim.spread(lambda sample: sample.p50_s * 1e3).median)} ms | "
            f"{number(_rate(job))} |"
            for workers, claim, job in zip(_WORKERS, claims, jobs, strict=True)
        ),
        "",
        f"| other connections, open and idle | claims a second of {_BESIDE} workers |",
        "| --- | --- |",
        *(
            f"| {connections} | {number(_rate(one))} |"
            for connections, one in zip(_IDLE, idle, strict=True)
        ),
        "",
        f"Medians of {_ROUNDS} rounds of {_SECONDS:g} s. All workers use one queue of one "
        "namespace. A job from end to end is registered, claimed and completed.",
        "",
        *(f"- {name}: {fact}" for name, fact in facts.items()),
    ]


def _picture(claims: Sequence[Series], jobs: Sequence[Series]) -> str:
    names = [f"{workers} worker{'s' * (workers > 1)}" for workers in _WORKERS]
    return pictures.draw(
        "What one PostgreSQL carries",
        [
            Chart(unit, names, [one.spread(lambda sample: sample.rate) for one in series])
            for unit, series in (("claims a second", claims), ("jobs a second", jobs))
        ],
    )


if __name__ == "__main__":
    main()
