"""Swaps in threads of their own, and swaps whose process dies."""

import threading
from collections.abc import Sequence
from typing import Any

from holdfast.domains.workflows import Workflows
from holdfast.domains.workflows.records import Obstacle
from holdfast.domains.workflows.swap import Swap
from holdfast.domains.workflows.wire import CURRENT_RECIPE, ONLY, UNKNOWN_RECIPE
from holdfast.kernel.errors import HoldfastError
from tests.harness.timeouts import PATIENCE_S
from tests.unit.workflows_world import World


class Swapping:
    """A swap in a thread of its own. Made once it waits for somebody, or has ended."""

    def __init__(self, workflows: Workflows, recipe: str, **more: Any) -> None:
        self.reported: list[Sequence[Obstacle]] = []
        self.error: HoldfastError | None = None
        self.loaded = self.needed = False
        self._waits = threading.Event()
        self._swap = workflows.swap(
            recipe, on_wait=self._tell, timeout_s=more.pop("timeout_s", PATIENCE_S), **more
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._waits.wait(PATIENCE_S)

    def _tell(self, in_the_way: Sequence[Obstacle]) -> None:
        self.reported.append(in_the_way)
        self._waits.set()

    def _run(self) -> None:
        try:
            with self._swap as swap:
                self.loaded, self.needed = True, swap.needed
        except HoldfastError as error:
            self.error = error
        finally:
            self._waits.set()

    def ended(self) -> "Swapping":
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self


def stored(world: World) -> tuple[str | None, str | None]:
    """The recipe that is loaded and the one whose load was not seen to succeed, as they are
    stored.
    """
    current, unknown = world.store.get(CURRENT_RECIPE, ONLY), world.store.get(UNKNOWN_RECIPE, ONLY)
    return (
        None if current is None else current.record.recipe,
        None if unknown is None else unknown.record.recipe,
    )


def lose_lock(swap: Swap) -> None:
    """Take the swap lock away as a kill does: the kernel closes what the process had open. A test
    cannot kill its own process, so this reaches into the swap.
    """
    if swap._contender is not None:
        swap._contender.close()


def die(world: World, pid: int, swap: Swap) -> None:
    """Kill a process in the middle of a swap: what carried its lock goes with it."""
    lose_lock(swap)
    world.machine.end(pid)
