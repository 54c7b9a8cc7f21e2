"""An adapter whose agent does what the test says: it stands for our own port, and for no
product.
"""

import threading
from datetime import UTC, datetime
from typing import Any

from holdfast.domains.gateway import Adapter, AgentState, Answer, Delivery, Observation
from holdfast.domains.gateway.state import ALLOW, DENY, Question
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
        self.detail = ""
        self.activity = ""
        self.questions: tuple[Question, ...] = ()
        self.replies: list[tuple[str, str]] = []
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
        there = self.instance_id is not None
        return Observation(
            self.instance_id,
            self.state,
            self.detail if there else "gone",
            self.reason,
            questions=self.questions if there else (),
            activity=self.activity,
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

    def asks(self, question_id: str = "q1", **more: Any) -> Question:
        """Ask for a permission."""
        said: dict[str, Any] = {
            "kind": "permission",
            "subject": "Bash: make flash",
            "choices": (ALLOW, DENY),
            "free_text": True,
            "asked_at": datetime(2026, 1, 1, tzinfo=UTC),
            **more,
        }
        question = Question(question_id=question_id, **said)
        self.questions = (*self.questions, question)
        self.state = AgentState.ASKING
        return question

    def reply(self, question_id: str, reply: str, instance_id: str) -> None:
        self._break("reply")
        self.replies.append((question_id, reply))
        self.questions = tuple(one for one in self.questions if one.question_id != question_id)
        if not self.questions:
            self.state = AgentState.READY

    def close(self) -> None:
        self.closed = True

    def _break(self, what: str) -> None:
        if what in self.broken:
            raise self.broken[what]
