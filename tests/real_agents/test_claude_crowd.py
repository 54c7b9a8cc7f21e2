"""Many prompts through one Claude Code in tmux, while a person works at its keyboard and processes
are killed. HOLDFAST_PROMPTS sets how many, HOLDFAST_SEED repeats a run.
"""

import os
import random
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest

from holdfast.kernel.errors import HoldfastError
from tests.harness.timeouts import until
from tests.real_agents.tool_rig import PASTE, PASTED, ToolRig

pytestmark = pytest.mark.tools

PROMPTS = int(os.environ.get("HOLDFAST_PROMPTS", "40"))
ALLOWED = {
    "interrupted",
    "altered",
    "interrupted_by_restart",
    "agent_gone",
    "upstream_unavailable",
    "agent_failed",
    "not_received",
}
"""The codes with which a request may end here. `not_received`: the person has removed the paste
before its Enter.
"""
_SIGN = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
_ASKS = "Do you want to proceed"


class Person:
    """Somebody at the keyboard, who never presses Enter and who leaves the box empty."""

    def __init__(self, rig: ToolRig, chance: random.Random) -> None:
        self._rig = rig
        self._chance = chance
        self._stop = threading.Event()
        self.done: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Person":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        actions: list[Callable[[], None]] = [
            self._drafts,
            self._drafts,
            self._interrupts,
            self._opens_a_menu,
            self._looks_at_the_transcript,
            self._scrolls,
        ]
        while not self._stop.wait(self._chance.uniform(0.1, 1.5)):
            # While the pane is being replaced, nobody types.
            with suppress(AssertionError):
                if _ASKS in self._rig.screen():
                    self._answers()
                else:
                    action = self._chance.choice(actions)
                    action()
                    self.done[action.__name__] += 1
                self._leaves()

    def _pause(self) -> None:
        self._stop.wait(self._chance.uniform(0, 0.4))

    def _drafts(self) -> None:
        for letter in "do not send this":
            self._rig.person_writes(letter)
            if self._chance.random() < 0.3:
                self._pause()

    def _interrupts(self) -> None:
        self._rig.person_types("Escape")

    def _opens_a_menu(self) -> None:
        self._rig.person_writes("/mod")
        self._pause()

    def _looks_at_the_transcript(self) -> None:
        self._rig.person_types("C-o")
        self._pause()
        self._rig.person_types("C-o")

    def _scrolls(self) -> None:
        self._rig.tmux("copy-mode", "-t", "=HOLDFAST-gpu:")
        self._pause()
        self._rig.tmux("send-keys", "-t", "=HOLDFAST-gpu:", "-X", "cancel", check=False)

    def _answers(self) -> None:
        self._pause()
        if _ASKS in self._rig.screen():
            self._rig.person_types(self._chance.choice(["1", "1", "Escape"]))
            self.done["answers"] += 1

    def _leaves(self) -> None:
        """Empty the box, and close what was opened."""
        for _ in range(100):
            screen = self._rig.screen()
            if _ASKS in screen or self._stop.is_set():
                return
            lines = [line for line in screen.splitlines() if line.startswith(_SIGN)]
            if lines and not lines[-1].removeprefix(_SIGN).strip("\xa0 "):
                return
            self._rig.person_types("C-u" if lines else "Escape")
            self._stop.wait(0.1)


def test_every_answer_belongs_to_its_prompt(claude: ToolRig) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED") or random.randrange(1 << 32))
    chance = random.Random(seed)
    print(f"seed {seed} (HOLDFAST_SEED)", file=sys.stderr)
    texts, requests = {}, {}
    kills: Counter[str] = Counter()
    with Person(claude, random.Random(seed + 1)) as person:
        for number in range(PROMPTS):
            texts[number] = text_of(number, chance)
            requests[number] = hand_in(claude, texts[number], f"key-{number}")
            if chance.random() < 0.06:
                claude.kill_gateway()
                claude.serve()
                kills["gateway"] += 1
            if chance.random() < 0.3:
                claude.ended(requests[number], 300)
        ended = {number: claude.ended(one, 300) for number, one in requests.items()}
    codes = Counter(one["error_code"] or "answered" for one in ended.values())
    print(f"{dict(codes)}, person: {dict(person.done)}, kills: {dict(kills)}", file=sys.stderr)

    asked = Counter(claude.model.prompts())
    for number, one in ended.items():
        mark = f"p-{number}"
        if one["state"] == "completed":
            assert one["result"]["text"].splitlines()[0].endswith(f"answered {mark}"), one
            assert asked[texts[number]] == 1, (number, asked)
        else:
            assert one["error_code"] in ALLOWED, one
            assert asked[texts[number]] <= 1, (number, asked)
    # What the model was asked is a prompt as it was handed in, and nothing else.
    assert set(asked) <= set(texts.values()), set(asked) - set(texts.values())
    assert codes["answered"] >= PROMPTS // 5, codes
    check_keys(claude.typed())


def text_of(number: int, chance: random.Random) -> str:
    kind = chance.choice(["plain", "plain", "tool", "lines"])
    return {
        "plain": f"p-{number} say it",
        "tool": f"p-{number} [[tool touch made-{number}]]",
        "lines": f"p-{number} first\nand second",
    }[kind]


def hand_in(rig: ToolRig, text: str, key: str) -> str:
    """Hand in a prompt, however often the gateway is away."""
    found: list[str] = []

    def accepted() -> bool:
        with suppress(HoldfastError):
            found.append(rig.prompt(text, idempotency_key=key))
        return bool(found)

    until(accepted, 120)
    return found[0]


def check_keys(typed: bytes) -> None:
    """Behind each paste there is at most one Enter before the next one, and no Enter is anywhere
    else: the person presses none. tmux puts no marks around a paste while Claude Code has switched
    them off, as for a moment behind its transcript; a prompt of one line may be pasted then too.
    """
    before, *pieces = typed.split(PASTE)
    assert b"\r" not in before, before
    for piece in pieces:
        text, end, behind = piece.partition(PASTED)
        assert end, piece
        assert re.search(rb"\bp-\d+", text), text
        unmarked = len(re.findall(rb"\bp-\d+ say it", behind))
        assert behind.count(b"\r") <= 1 + unmarked, behind


@pytest.mark.parametrize("times", [3])
def test_an_agent_that_is_killed_again_and_again(claude: ToolRig, times: int) -> None:
    for number in range(times):
        text = f"p-{number} [[hold h]]"
        request = claude.prompt(text)
        claude.model.wait_for(f"p-{number}")
        os.kill(claude.pid(), signal.SIGKILL)
        assert claude.ended(request)["error_code"] == "agent_gone"
        claude.kill_gateway()
        until(lambda: "HOLDFAST-gpu" not in claude.tmux.sessions())
        claude.begin()
        claude.serve()
        claude.until_state("ready")
    assert Counter(claude.model.prompts()) == {f"p-{n} [[hold h]]": 1 for n in range(times)}
