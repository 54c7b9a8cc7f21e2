"""What a protocol to an agent has to say: the port behind `ProtocolAgent`, and one turn of it."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from holdfast.adapters.json_rpc import RpcMessage, RpcProgram
from holdfast.domains.gateway.state import Choice
from holdfast.kernel.limits import ANSWER_CHARS_MAX


class TurnEnd(NamedTuple):
    """How a turn ended. Without a `code`, its prompt was answered."""

    code: str | None = None
    detail: str = ""
    stop_reason: str = ""


class ProtocolNews(NamedTuple):
    """What a notification says. Empty fields say nothing.

    `text` is a piece of the answer, in the message `part`; with `whole` it replaces what came of
    that message. `call` is a tool call, which runs while `activity` says what it does. `replay`:
    what came so far is an earlier conversation's. `turn` is the turn that all this is of, where the
    protocol says so; `end` is the end of that turn. `resolved` is a question that was withdrawn.
    """

    text: str = ""
    part: str = ""
    whole: bool = False
    call: str = ""
    activity: str = ""
    replay: bool = False
    turn: str | None = None
    end: TurnEnd | None = None
    resolved: int | str | None = None


class ProtocolQuestion(NamedTuple):
    """A question in a request of the agent, before it has an id and times."""

    key: str
    kind: Any
    subject: str
    detail: str
    choices: tuple[Choice, ...]
    free_text: bool = False


class ProtocolRequest(NamedTuple):
    """A request of the agent that its operator answers. `result` makes the result from the replies
    by the questions' keys; without a reply, the answer is no. `cancelled` is the result when the
    turn is cancelled.
    """

    questions: tuple[ProtocolQuestion, ...]
    result: Callable[[Mapping[str, str]], dict[str, Any]]
    cancelled: dict[str, Any]


class Opened(NamedTuple):
    """A conversation that was begun or resumed. `settle_s`: how long its replay may take to end."""

    session_id: str
    settle_s: float = 0.0


class NotOpened(Exception):
    """The agent runs and cannot be used. `lost`: it does not have the conversation any more."""

    def __init__(self, why: str, *, lost: bool = False) -> None:
        super().__init__(why)
        self.lost = lost


class AgentProtocol(ABC):
    """The messages of one protocol. It keeps nothing but what the handshake found."""

    backend: str

    @abstractmethod
    def greet(self, program: RpcProgram, within_s: float) -> None:
        """The first messages. Raises NotOpened, RpcError and UpstreamUnavailable."""

    @abstractmethod
    def open(
        self, program: RpcProgram, folder: str, session_id: str | None, within_s: float
    ) -> Opened:
        """Begin a conversation, or resume that one. Raises as `greet`."""

    @abstractmethod
    def prompt(self, program: RpcProgram, session_id: str, text: str, turn: "Turn") -> None:
        """Send a prompt, and return when the agent has it. Raises UpstreamUnavailable."""

    @abstractmethod
    def cancel(self, program: RpcProgram, session_id: str, turn: "Turn | None") -> None:
        """Ask the agent to stop its work. Raises UpstreamUnavailable."""

    @abstractmethod
    def news(self, session_id: str | None, message: RpcMessage) -> ProtocolNews | None:
        """What a notification says about that conversation; None when it says nothing."""

    @abstractmethod
    def request(self, message: RpcMessage) -> ProtocolRequest | None:
        """What a request asks an operator; None when it is not for an operator."""


class Turn:
    """A prompt that the agent works on."""

    def __init__(self, ended: Callable[["Turn", TurnEnd], None]) -> None:
        self.turn_id: str | None = None
        """The protocol's name of it, once it is known."""
        self.end: TurnEnd | None = None
        self.cancel_by_s: float | None = None
        """When its agent is ended, after it was asked to stop."""
        self._ended = ended
        self._pieces: deque[tuple[str, str]] = deque()
        self._size = 0

    def finish(self, end: TurnEnd) -> None:
        self._ended(self, end)

    def add(self, part: str, text: str, *, whole: bool) -> None:
        """Add a piece of the answer. Of a long one, the end is kept."""
        while whole and self._pieces and self._pieces[-1][0] == part:
            self._size -= len(self._pieces.pop()[1])
        self._pieces.append((part, text))
        self._size += len(text)
        while self._size - len(self._pieces[0][1]) > ANSWER_CHARS_MAX:
            self._size -= len(self._pieces.popleft()[1])

    def forget(self) -> None:
        self._pieces.clear()
        self._size = 0

    @property
    def text(self) -> str:
        """The answer; an empty line is between its messages."""
        words, before = [], None
        for part, text in self._pieces:
            if before not in (None, part):
                words.append("\n\n")
            words.append(text)
            before = part
        return "".join(words)
