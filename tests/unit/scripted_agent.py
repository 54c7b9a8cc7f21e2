"""An adapter whose agent does what the test says: it stands for our own port, and for no
product.
"""

import threading

from holdfast.domains.gateway import Adapter, AgentState, Answer, Delivery, Observation
from holdfast.kernel.errors import Fenced, InvalidValue


class ScriptedAgent(Adapter):
    """Each prompt is answered when `answers` is set, or at once with `instant`; `broken` is raised
    by whatever it names.
    """

    backend = "scripted"

    def __init__(self, instance_id: str | None = "one", *, instant: bool = True) -> None:
        self.instance_id = instance_id
        self.state = AgentState.READY
        self.reason = ""
        self.end_unknown = False
        self.received: list[tuple[str, str]] = []
        self.interrupts: list[str] = []
        self.broken: dict[str, Exception] = {}
        self.swap_at_delivery: str | None = None
        self.began = threading.Event()
        self.answers = threading.Event()
        if instant:
            self.answers.set()
        self.closed = False

    def inspect(self) -> Observation:
        self._break("inspect")
        return Observation(
            self.instance_id, self.state, "" if self.instance_id else "gone", self.reason
        )

    def check(self, prompt: str) -> None:
        if prompt == "unfit":
            raise InvalidValue("unfit", field="prompt")

    def deliver(self, prompt: str, instance_id: str) -> Delivery:
        if self.swap_at_delivery is not None:
            self.instance_id, self.swap_at_delivery = self.swap_at_delivery, None
        if instance_id != self.instance_id:
            raise Fenced("another instance")
        self._break("deliver")
        self.received.append((instance_id, prompt))
        self.began.set()
        return Delivery(prompt)

    def answer(self, delivery: Delivery, stop: threading.Event) -> Answer:
        self._break("answer")
        if self.end_unknown:
            return Answer(known=False)
        while not self.answers.wait(0.01):
            if stop.is_set():
                return Answer(code="stopped", detail="stopped", known=False)
        return Answer(text=f"re: {delivery.handle}", source="output")

    def interrupt(self, instance_id: str) -> bool:
        self._break("interrupt")
        self.interrupts.append(instance_id)
        self.answers.set()
        return True

    def close(self) -> None:
        self.closed = True

    def _break(self, what: str) -> None:
        if what in self.broken:
            raise self.broken[what]
