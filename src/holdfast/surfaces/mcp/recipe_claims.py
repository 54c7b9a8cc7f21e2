"""Work that needs a recipe, and a swap to another one."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from holdfast.app import Holdfast
from holdfast.domains.workflows.record import SwapMarker, who
from holdfast.domains.workflows.swap import InTheWay, Swap
from holdfast.domains.workflows.work import Work
from holdfast.kernel.errors import EAgain, HoldfastError, LeaseLost, Lost
from holdfast.kernel.limits import MCP_UNTOLD_S
from holdfast.surfaces.mcp.answers import Ahead, Holding, Notice
from holdfast.surfaces.mcp.pursuit import Pursuit
from holdfast.surfaces.mcp.stopping import Call


class RecipeClaim:
    """A workflow of this process. It is renewed in the background, by the workflow's own thread."""

    def __init__(self, hf: Holdfast, handle: str, work: Work) -> None:
        self._hf = hf
        self.handle = handle
        self.work = work

    def holding(self) -> Holding:
        """What it is, and how it stands."""
        state = (
            "lease_lost" if self.work.lost.is_set() else "preemption_asked" if self.work.preempted.is_set() else "registered"
        )
        return Holding(handle=self.handle, what=f"work with recipe {self.work.workflow.recipe}", state=state)

    def notices(self) -> Iterator[Notice]:
        """Whether it was asked to yield, or swept."""
        workflow = self.work.workflow
        try:
            asked = self._hf.workflows.preempt_requested(workflow.name, workflow.token)
        except Lost as error:
            yield Notice(kind="lease_lost", handle=self.handle, message=error.message)
            return
        if asked:
            words = (
                f"another recipe is wanted in place of {workflow.recipe}: come to a safe point, save what you need, then call "
                f"yield_or_swap with action yield and handle {self.handle}"
            )
            yield Notice(kind="preemption_asked", handle=self.handle, message=words)

    def attend(self, now_s: float) -> float | None:
        """Nothing: its own thread renews it."""
        return None

    def let_go(self, within_s: float) -> bool:
        """Release it; if it was asked to yield, it has. False when it was swept before."""
        try:
            self.work.__exit__(None, None, None)
        except LeaseLost:
            return False
        return True


class SwapClaim:
    """A swap: waiting for others, ready to load, or over."""

    def __init__(self, hf: Holdfast, handle: str, recipe: str, *, grace_s: float, timeout_s: float) -> None:
        self._hf = hf
        self.handle = handle
        self.recipe = recipe
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._ahead: Sequence[InTheWay] = ()
        self._ready_s: float | None = None
        self._pursuit: Pursuit[Swap] | None = None
        self.told = False
        """Does the agent know that it may load?"""
        self._mutex = threading.Lock()
        self._unwanted = False
        self._entered: Swap | None = None

    def begin(self, ended: Callable[[], object]) -> None:
        """Ask the others to yield, and wait for them."""

        def over() -> None:
            self._ready_s = time.monotonic()
            ended()

        self._pursuit = Pursuit(self._seek, ended=over)

    def wait(self, limit_s: float, call: Call) -> None:
        """Wait until it is ready."""
        if self._pursuit is not None:
            self._pursuit.wait(limit_s, call)

    def swap(self) -> Swap | None:
        """The swap when it is ready; None while others are in the way. Raises what it was refused with."""
        if self._pursuit is None or not self._pursuit.done:
            return None
        if self._pursuit.error is not None:
            raise self._pursuit.error
        return self._pursuit.found

    def tell(self) -> bool:
        """The agent is about to be told that it may load; True for the first time. Raises LeaseLost when the swap is just being
        given up: never both."""
        with self._mutex:
            if self._unwanted:
                raise self._over()
            first, self.told = not self.told, True
        return first

    def refused(self, error: HoldfastError) -> bool:
        """Is this what the swap itself ended with?"""
        return self._pursuit is not None and error is self._pursuit.error

    def loaded(self) -> Swap:
        """The recipe is loaded: make it the current one. Raises EAgain while others are in the way, LeaseLost when the swap was
        lost meanwhile."""
        swap = self._ready()
        # It may have been given up since.
        swap.check()
        swap.__exit__(None, None, None)
        return swap

    def failed(self, why: str) -> Swap:
        """The recipe could not be loaded: nothing has changed."""
        swap = self._ready()
        swap.fail(why)
        return swap

    def ahead(self) -> tuple[Ahead, ...]:
        """Who is in the way, while it waits."""
        return () if self._pursuit is not None and self._pursuit.done else tuple(_in_the_way(one) for one in self._ahead)

    def holding(self) -> Holding:
        """What it is, and how it stands."""
        try:
            state = "waiting" if self.swap() is None else "ready"
        except HoldfastError as error:
            state = error.code
        return Holding(handle=self.handle, what=f"swap to {self.recipe}", state=state)

    def notices(self) -> Iterator[Notice]:
        """Whether it is ready, was refused, or was lost."""
        if self._pursuit is not None and self._pursuit.error is not None:
            yield Notice(kind="swap_refused", handle=self.handle, message=self._pursuit.error.message)
        elif (swap := self.swap()) is not None:
            try:
                swap.check()
                first = self.tell()
            except LeaseLost as error:
                yield Notice(kind="lease_lost", handle=self.handle, message=error.message)
                return
            if first:
                words = (
                    f"nobody is in the way any more: load {self.recipe}, then call yield_or_swap with action loaded or failed"
                )
                yield Notice(kind="swap_ready", handle=self.handle, message=words)

    def attend(self, now_s: float) -> float | None:
        """A swap that nobody came for is given up: all others wait behind it."""
        if self.told or self._ready_s is None or self._pursuit is None or self._pursuit.found is None:
            return None
        due_s = self._ready_s + MCP_UNTOLD_S
        if now_s < due_s:
            return due_s
        with self._mutex:
            if self.told:
                return None
            self._unwanted = True
        self._pursuit.found.fail("nobody came to load it")
        return None

    def let_go(self, within_s: float) -> bool:
        """Give the swap up; nothing has changed."""
        if self._pursuit is None:
            return False
        with self._mutex:
            self._unwanted = True
            waited = not self._pursuit.done
        self._pursuit.stop(within_s)
        if self._entered is not None:
            self._entered.fail(_GIVEN_UP)
            return True
        return waited

    def _seek(self, stop_fd: int) -> Swap:
        swap = self._hf.workflows.swap(
            self.recipe, grace_s=self._grace_s, timeout_s=self._timeout_s, on_wait=self._see, stop_fd=stop_fd
        ).__enter__()
        with self._mutex:
            if not self._unwanted:
                self._entered = swap
                return swap
        # Its way was free as it was given up, and whoever gave it up may not have waited for that.
        swap.fail(_GIVEN_UP)
        raise self._over()

    def _over(self) -> LeaseLost:
        return LeaseLost(f"the swap to {self.recipe} was given up: do not load it; ask for another", recipe=self.recipe)

    def _see(self, in_the_way: Sequence[InTheWay]) -> None:
        self._ahead = list(in_the_way)

    def _ready(self) -> Swap:
        swap = self.swap()
        if swap is None:
            raise EAgain(
                f"the swap to {self.recipe} is not ready: call `wait` with {self.handle} until it is", recipe=self.recipe
            )
        return swap


_GIVEN_UP = "given up by its agent"


def _in_the_way(one: InTheWay) -> Ahead:
    if isinstance(one, SwapMarker):
        return Ahead(by=who(one.holder), what=f"a swap to {one.recipe}", holds=True)
    return Ahead(by=who(one.owner), what=f"{one.name} works with {one.recipe}", holds=True)
