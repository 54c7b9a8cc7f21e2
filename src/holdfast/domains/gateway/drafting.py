"""What may be asked of an agent."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from holdfast.kernel.errors import InvalidValue
from holdfast.kernel.limits import PROMPT_BYTES_MAX
from holdfast.kernel.text import hidden_in
from holdfast.primitives.queue import Draft
from holdfast.primitives.queue.queue import check_draft

Kind = Literal["submit_prompt", "interrupt"]

_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but tab and newline. An escape would end a bracketed paste, and the rest of the prompt would be typed."""


def draft_of(
    kind: str, payload: Mapping[str, Any], check: Callable[[str], None], *, idempotency_key: str | None = None
) -> Draft:
    """Make a draft of what a caller asks for. Raises InvalidValue and InvalidName before anything is stored."""
    if kind == "submit_prompt":
        prompt = _prompt_in(payload)
        check_prompt(prompt)
        check(prompt)
    elif kind == "interrupt":
        if payload:
            raise InvalidValue(f"an interrupt has no payload, not even {_named(payload)}: leave it empty", field="payload")
    else:
        raise InvalidValue(f"{kind[:40]!a} is no kind of request: use submit_prompt or interrupt", field="kind")
    draft = Draft(kind=kind, payload=dict(payload), idempotency_key=idempotency_key, express=kind == "interrupt")
    check_draft(draft)
    return draft


def check_prompt(prompt: str) -> None:
    """Refuse a prompt that is empty, too long, hides text, or has control characters other than tab and newline.

    Raises InvalidValue. What hides text is said in `kernel.text`.
    """
    if not prompt.strip():
        raise InvalidValue("the prompt is empty: say what is to be done", field="prompt")
    if (found := _FORBIDDEN.search(prompt)) is not None:
        raise InvalidValue(
            f"the prompt has the control character {found[0]!a} at {found.start()}: only tab and newline can be delivered, as "
            "a terminal would obey the others",
            field="prompt",
            at=found.start(),
        )
    if (hidden := hidden_in(prompt)) is not None:
        at, character = hidden
        raise InvalidValue(
            f"the prompt hides text from people: its character {at + 1} is U+{ord(character):04X}, which the agent reads and "
            "nobody at its terminal sees. Leave it and those behind it out",
            field="prompt",
            at=at,
        )
    size = len(prompt.encode())
    if size > PROMPT_BYTES_MAX:
        raise InvalidValue(
            f"the prompt has {size} bytes and may have {PROMPT_BYTES_MAX}: put the text into a file and name it",
            field="prompt",
            bytes=size,
        )


def _prompt_in(payload: Mapping[str, Any]) -> str:
    if set(payload) - {"prompt"}:
        raise InvalidValue(f"a prompt's payload has `prompt` alone, not {_named(payload)}", field="payload")
    prompt = payload.get("prompt")
    if not isinstance(prompt, str):
        raise InvalidValue('a prompt\'s payload is {"prompt": "..."}', field="prompt")
    return prompt


def _named(payload: Mapping[str, Any]) -> str:
    return ", ".join(ascii(name)[:40] for name in list(payload)[:4])
