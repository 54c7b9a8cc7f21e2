"""A gateway killed at every point between the acceptance of a request and its end, in any thread."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.domains.gateway import DeliveryWorker
from holdfast.primitives.queue import RequestState
from holdfast.primitives.queue.records import Head
from tests.harness.timeouts import until
from tests.hazards.gateway_victim import FINISHED, PROMPTS, lines, opened

pytestmark = pytest.mark.prove

_AT_ONCE = 30
_POINTS_MAX = 400
_OWN_POINTS = (
    "gateway.accepted",
    "gateway.claimed",
    "gateway.delivery.before",
    "gateway.delivery.after",
    "gateway.end.before",
    "gateway.end.after",
)


@pytest.mark.parametrize(("kind", "every"), [("sqlite", 1), ("postgres", 4)])
def test_killed_at_every_point_from_acceptance_to_end(
    kind: str, every: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = (
        "sqlite:{folder}/queue.sqlite"
        if kind == "sqlite"
        else request.getfixturevalue("postgres_url")
    )
    # By their names too: which number a point has differs from run to run, as threads do.
    for point, status in _killed(url, tmp_path, _OWN_POINTS).items():
        assert status == -signal.SIGKILL and lines(tmp_path / point / "died_at") == [point], (
            point,
            status,
        )
    for first in range(1, _POINTS_MAX, _AT_ONCE):
        ended = _killed(url, tmp_path, range(first, first + _AT_ONCE, every))
        assert set(ended.values()) <= {FINISHED, -signal.SIGKILL}, ended
        if FINISHED in ended.values():
            break
    else:
        raise AssertionError("it never came to its end")


def _killed(url: str, folder: Path, points: Sequence[object]) -> dict[str, int]:
    """Kill it at each of these points, check what is left, and return each outcome."""
    named = [str(point) for point in points]
    subprocess.run(
        [sys.executable, "-m", "tests.hazards.gateway_victim", url, str(folder), *named], check=True
    )
    ended = dict(line.split() for line in lines(folder / "ended"))
    for point in named:
        _check(url.format(folder=folder / point), folder / point)
    return {point: int(ended[point]) for point in named}


def _check(url: str, folder: Path) -> None:
    """What the next gateway makes of it: nothing lost, nothing twice, in order, and what ran is
    ended and said to be.
    """
    before = lines(folder / "delivered")
    gateway = opened(url, folder)
    worker = DeliveryWorker(gateway, inspect_every_s=0.02)
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
    assert all(
        one.payload["prompt"] in delivered for one in found if one.state is RequestState.COMPLETED
    ), point
    lost = [one for one in stored if one.error_code == "interrupted_by_restart"]
    # One had the slot, and the interrupt needs none.
    assert len(lost) <= 1 + (len(stored) > len(found)), point
    assert not [one for one in lost if one.payload.get("prompt") in delivered[len(before) :]], point
    for one in stored:
        assert one.error_code in (None, "interrupted_by_restart", "interrupted"), point
        if one.error_code == "interrupted":
            # It came to one that was claimed and not delivered yet.
            assert one.payload["prompt"] not in delivered, point
