"""A gateway killed at every single point between the acceptance of a request and its end, in whichever thread it lies."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.domains.gateway import Worker
from holdfast.primitives.queue import RequestState
from holdfast.primitives.queue.record import Head
from tests.hazards.gateway_victim import FINISHED, PROMPTS, lines, opened
from tests.patience import until

pytestmark = pytest.mark.slow

_AT_ONCE = 30
_POINTS_MAX = 400


@pytest.mark.parametrize(("kind", "every"), [("sqlite", 1), ("postgres", 4)])
def test_killed_at_every_point_from_acceptance_to_end(
    kind: str, every: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = "sqlite:{folder}/queue.sqlite" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    died_at: list[str] = []
    for first in range(1, _POINTS_MAX, _AT_ONCE):
        ended = _killed(url, tmp_path, range(first, first + _AT_ONCE, every))
        for number, status in ended.items():
            assert status in (FINISHED, -signal.SIGKILL), (number, status)
            died_at += lines(tmp_path / str(number) / "died_at")
            _check(url.format(folder=tmp_path / str(number)), tmp_path / str(number))
        if FINISHED in ended.values():
            break
    else:
        raise AssertionError("it never came to its end")
    # Which number a point has differs from run to run, as threads do: most kinds are met, and by luck not each.
    mine = {"gateway.accepted", "gateway.claimed", "gateway.delivery.before", "gateway.delivery.after", "gateway.end.before"}
    assert len(mine & set(died_at)) >= (3 if every == 1 else 1), died_at
    assert {f"{kind}.commit.before", f"{kind}.commit.after"} & set(died_at), died_at


def _killed(url: str, folder: Path, numbers: range) -> dict[int, int]:
    words = [sys.executable, "-m", "tests.hazards.gateway_victim", url, str(folder), *map(str, numbers)]
    subprocess.run(words, check=True)
    ended = dict(map(int, line.split()) for line in lines(folder / "ended"))
    return {number: ended[number] for number in numbers}


def _check(url: str, folder: Path) -> None:
    """What the next gateway makes of it: nothing lost, nothing twice, in order, and what ran is ended and said to be."""
    before = lines(folder / "delivered")
    gateway = opened(url, folder)
    worker = Worker(gateway, inspect_every_s=0.02)
    worker.start()
    try:
        until(lambda: gateway.queue.head() == Head())
    finally:
        worker.stop(grace_s=1)
    stored = gateway.queue.list()
    delivered = lines(folder / "delivered")
    gateway.queue.store.close()
    point = (folder.name, *lines(folder / "died_at"))
    assert set(lines(folder / "acknowledged")) <= {one.request_id for one in stored}, point
    found = [one for one in stored if one.kind == "submit_prompt"]
    prompts = [one.payload["prompt"] for one in found]
    assert prompts == list(PROMPTS[: len(found)]), point
    assert len(delivered) == len(set(delivered)), point
    assert delivered == [prompt for prompt in prompts if prompt in delivered], point
    assert all(one.payload["prompt"] in delivered for one in found if one.state is RequestState.COMPLETED), point
    lost = [one for one in stored if one.error_code == "interrupted_by_restart"]
    # One had the slot, and the interrupt needs none.
    assert len(lost) <= 1 + (len(stored) > len(found)), point
    assert not [one for one in lost if one.payload.get("prompt") in delivered[len(before) :]], point
    for one in stored:
        assert one.error_code in (None, "interrupted_by_restart", "interrupted"), point
        if one.error_code == "interrupted":
            # It came to one that was claimed and not delivered yet.
            assert one.payload["prompt"] not in delivered, point
