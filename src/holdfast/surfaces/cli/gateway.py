"""`holdfast gateway`: one agent's durable queue of requests."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.adapters.gateway_client import GatewayClient
from holdfast.domains.agents.records import RUN_BY_GATEWAY
from holdfast.domains.gateway import GatewayStatus
from holdfast.domains.gateway.records import Reconciled
from holdfast.domains.gateway.state import Question
from holdfast.kernel.codec import to_json, to_plain
from holdfast.kernel.errors import EXIT_DONE, STATUS, InvalidValue
from holdfast.kernel.settings import Settings
from holdfast.kernel.text import clipped, counted
from holdfast.operations import gateways as operations
from holdfast.operations import questions
from holdfast.runtime.configuration import gateways_here
from holdfast.runtime.connection import connected
from holdfast.runtime.gateway_identity import gateway_client
from holdfast.surfaces.cli.command import CommandGroup, Duration, json_option, request_options
from holdfast.surfaces.cli.connection import settings_here
from holdfast.surfaces.cli.gateway_serve import serve
from holdfast.surfaces.cli.hints import completed
from holdfast.surfaces.cli.output import STDIN, answer, read_file, working
from holdfast.surfaces.cli.render import json_document, pairs, short_moment, table
from holdfast.surfaces.cli.store_options import store_options

F = TypeVar("F", bound=Callable[..., Any])
WAIT_S = 3600.0
INTERRUPT_S = 30.0
_EXIT_FAILED = STATUS["refused"].exit
_EXIT_TIMED_OUT = STATUS["lock_timeout"].exit


@click.group(cls=CommandGroup)
def gateway() -> None:
    """An agent's gateway: prompts are stored durably, delivered once, in order, to one instance."""


gateway.add_command(serve)


class Here:
    """Where gateways are found: in the folders of this machine, or at an address of the user's."""

    def __init__(self, url: str | None, token_file: Path | None) -> None:
        if (url is None) != (token_file is None):
            raise InvalidValue(
                "--url needs --token-file, and the other way round: give both or neither"
            )
        self._url = url
        self._token = None
        if token_file is not None:
            self._token = token_file.read_bytes().decode(errors="replace").strip()

    job_events = None
    """A gateway at an address knows no jobs."""

    @property
    def at_url(self) -> bool:
        """The user gave an address."""
        return self._url is not None

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return settings_here()

    def gateway(self, agent: str) -> GatewayClient:
        """The client of an agent's gateway."""
        settings = self.settings
        connection = partial(connected, settings, create=False)
        return gateway_client(agent, settings, connection, url=self._url, token=self._token)

    def gateways(self) -> list[str]:
        """The agents that have, or had, a gateway on this machine."""
        return gateways_here(settings_here())


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    context.meta[f"{__name__}.{parameter.name}"] = value


def _place_options(command: F) -> F:
    """Add --url and --token-file to a command, and the options of its store."""
    token_file = click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        expose_value=False,
        callback=_remember,
        help="The file with its token; with --url.",
    )
    url = click.option(
        "--url",
        expose_value=False,
        callback=_remember,
        help="Where the gateway is, when its folder is not here, such as http://10.0.0.7:9100.",
    )
    return url(token_file(store_options(command)))


def _here() -> Here:
    """Where the options of the command that runs say that gateways are."""
    meta = click.get_current_context().meta
    return Here(meta[f"{__name__}.url"], meta[f"{__name__}.token_file"])


_operation = partial(
    gateway.operation, where=_place_options, connect=lambda **_: nullcontext(_here())
)


def _timeout_option(default: float, words: str) -> Callable[..., Any]:
    return click.option(
        "--timeout",
        "wait_s",
        metavar="SECONDS",
        type=Duration(),
        default=default,
        show_default=True,
        help=words,
    )


@_operation(operations.status)
def status(found: GatewayStatus, request: operations.GatewayKey) -> None:
    """Show the state of a gateway and its agent."""
    hidden = ("schema_version", "protocol_version", "questions")
    facts = [
        (name, str(value))
        for name, value in to_plain(found).items()
        if name not in hidden and value not in (None, "")
    ]
    asked = [(f"question {one.question_id}", _asked(one)) for one in found.questions]
    pairs([*facts, *asked, *_advice(request.agent, to_plain(found))])


def _asked(question: Question) -> str:
    return f"{question.subject} ({_answers(question)})"


def _advice(agent: str, found: dict[str, Any]) -> list[tuple[str, str]]:
    """What to do about a gateway that takes no requests."""
    if found["gateway_health"] != "healthy":
        return [("what to do", completed(f"holdfast gateway serve {agent}"))]
    if found["request_admission"] == "blocked_reconciliation":
        epoch = found["managed_agent_instance_epoch"]
        decide = f"holdfast gateway reconcile {agent} replay|discard --epoch {epoch}"
        read = f"holdfast gateway requests {agent}"
        return [("what to do", completed(f"{read}, then {decide}"))]
    if found["questions"]:
        return [("what to do", completed(f"holdfast gateway answer {agent} [QUESTION] REPLY"))]
    if found["request_admission"] == "blocked_unavailable":
        if found["backend"] in RUN_BY_GATEWAY:
            return [("what to do", "its gateway tries again by itself; what was accepted waits")]
        return [("what to do", f"start {agent} again; what was accepted waits for it")]
    return []


@gateway.command()
@request_options(operations.Prompt)
@click.argument("text", required=False)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until it has ended, and print the answer. "
    "Exit status 4 if it failed, 5 if it took too long.",
)
@_timeout_option(WAIT_S, "Seconds to wait; with --wait.")
@json_option
@_place_options
def prompt(
    request: Callable[..., operations.Prompt],
    text: str | None,
    wait: bool,
    wait_s: float,
    as_json: bool,
) -> int:
    """Hand a prompt to an agent, and print the request's id.

    Without TEXT, or with - for it, it is read from standard input.
    """
    if text is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InvalidValue(
            "there is no prompt: give it as an argument, or on standard input", field="prompt"
        )
    if text is None or text == STDIN:
        text = read_file(STDIN, "prompt")
    here, whole = _here(), request(prompt=text)
    accepted = operations.prompt(here, whole)
    if not wait:
        answer(to_json(accepted) if as_json else accepted.request_id)
        return EXIT_DONE
    with working(f"waiting for {whole.agent} to answer {accepted.request_id}"):
        ended = _request(here, whole.agent, accepted.request_id, wait_s)
    return _show_ended(ended, as_json)


@gateway.command()
@request_options(operations.InterruptAgent)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until what it stops has ended too. Exit status 5 if that took too long.",
)
@_timeout_option(INTERRUPT_S, "Seconds for all of it.")
@json_option
@_place_options
def interrupt(request: operations.InterruptAgent, wait: bool, wait_s: float, as_json: bool) -> int:
    """Stop what the agent is doing now, ahead of the queue.

    Returns when the agent was interrupted. Exit status 4 if it could not be, 5 if that took too
    long.
    """
    deadline, agent, here = time.monotonic() + wait_s, request.agent, _here()
    ended: dict[str, Any] = here.gateway(agent).interrupt(wait_s=wait_s)
    result: dict[str, Any] = ended.get("result") or {}
    if ended["state"] != "completed":
        return _show_ended(ended, as_json)
    stopped = result.get("stopped")
    waited = bool(wait and stopped)
    if waited:
        with working(f"waiting for {stopped} to end"):
            left_s = max(deadline - time.monotonic(), 0)
            ended = _request(here, agent, str(stopped), left_s)
    if result.get("disposition") != "accepted":
        words = f"nothing to stop: {result.get('detail') or 'it was idle'}"
    elif waited:
        words = f"{agent} was interrupted: {_summary(ended)}"
    else:
        words = f"{agent} was interrupted" + (f", which ends {stopped}" if stopped else "")
    answer(to_json(ended) if as_json else words)
    return EXIT_DONE if ended["state"] in ("completed", "failed") else _EXIT_TIMED_OUT


def _request(here: Here, agent: str, request_id: str, wait_s: float) -> dict[str, Any]:
    request = operations.GetRequest(agent=agent, request_id=request_id, wait_s=wait_s)
    plain: dict[str, Any] = to_plain(operations.request(here, request))
    return plain


def _show_ended(request: dict[str, Any], as_json: bool) -> int:
    text = (request.get("result") or {}).get("text")
    done = request["state"] == "completed"
    answer(to_json(request) if as_json else str(text) if done and text else _summary(request))
    if done:
        return EXIT_DONE
    return _EXIT_FAILED if request["state"] == "failed" else _EXIT_TIMED_OUT


def _summary(request: dict[str, Any]) -> str:
    words = f"{request['request_id']} is {request['state']}"
    if request.get("error_code"):
        return f"{words}: {request['error_code']}: {request.get('error_detail') or ''}"
    result = request.get("result") or {}
    if result.get("text"):
        return f"{words}: {clipped(str(result['text']), 200)}"
    return f"{words} ({result['receipt']})" if "receipt" in result else words


@gateway.command(name="questions")
@click.argument("agent", required=False)
@json_option
@_place_options
def questions_(agent: str | None, as_json: bool) -> None:
    """List what agents ask their operators, and jobs that wait for a permission.

    Without AGENT, those of all gateways of this machine.
    """
    with _asked_place() as place:
        if agent is not None:
            found = questions.of_agent(place, operations.GatewayKey(agent=agent))
        elif isinstance(place, Here):
            raise InvalidValue("--url is that of one gateway: say which AGENT it is", field="agent")
        else:
            found = questions.list_(place)
    if as_json:
        json_document(found)
        return
    table(
        ["agent", "question", "asked", "about", "answers"],
        [
            [
                *(one.agent, one.question_id, short_moment(one.asked_at), one.subject),
                _answers(one),
            ]
            for one in found
        ],
        elastic=["about"],
        empty="Nobody asks anything.",
    )


def _answers(question: Question | questions.OpenQuestion) -> str:
    """How a question can be answered."""
    if not question.choices:
        return "in its own terminal"
    names = [one.name for one in question.choices]
    return " | ".join([*names, "TEXT"] if question.free_text else names)


@gateway.command(name="answer")
@click.argument("agent")
@click.argument("words", metavar="[QUESTION] allow|deny|TEXT", nargs=-1, required=True)
@json_option
@_place_options
def answer_(agent: str, words: tuple[str, ...], as_json: bool) -> None:
    """Answer a question of an agent, or of a job that waits for a permission.

    \b
        holdfast gateway answer gpu allow
        holdfast gateway answer gpu 1f5c9a deny
        holdfast gateway answer gpu 1f5c9a "use the other branch"

    QUESTION may be left out if exactly one is open. The answer is the name of a choice, or a text
    where the question takes one: of a permission, a text refuses and says why. Exit status 1 when
    the question is over, 2 when it does not take that answer.
    """
    if len(words) > 2:
        raise InvalidValue("write a TEXT of several words in quotes", field="reply")
    with _asked_place() as place:
        known = words[0] if len(words) == 2 else questions.only_question(place, agent)
        given = questions.AnswerQuestion(agent=agent, question_id=known, reply=words[-1])
        done = questions.answer(place, given)
    answer(to_json(done) if as_json else f"{done.agent} has the answer: {done.reply}")


@contextmanager
def _asked_place() -> Iterator[Any]:
    """The store and the gateways of this machine, or the one gateway at --url."""
    here = _here()
    if here.at_url:
        yield here
        return
    with connected(settings_here(), create=False) as hf:
        yield hf


@_operation(operations.requests)
def requests(found: list[operations.RequestView], request: operations.ListRequests) -> None:
    """List an agent's requests in the order they came."""
    table(
        ["request", "state", "epoch", "accepted", "from", "kind", "what"],
        [
            [
                one.request_id,
                f"{one.state} {one.error_code}" if one.error_code else one.state,
                str(one.epoch),
                short_moment(one.accepted_at),
                _sender(one),
                one.kind,
                clipped(str(one.payload.get("prompt", ""))),
            ]
            for one in found
        ],
        elastic=["what"],
        empty=f"No requests. Hand one in: holdfast gateway prompt {request.agent} 'say hello'",
    )


def _sender(request: operations.RequestView) -> str:
    claimed = " (claimed)" if request.sender_claimed else ""
    return "-" if request.sender is None else f"{request.sender}{claimed}"


@_operation(operations.cancel)
def cancel(ended: operations.RequestView) -> str:
    return _summary(to_plain(ended))


@_operation(operations.reconcile)
def reconcile(done: Reconciled, request: operations.ReconcileGateway) -> str:
    """Decide what becomes of the requests that wait for an agent that was replaced.

    They are delivered to the new one, or discarded.
    """
    number, left = counted(len(done.requests), "request"), len(done.left)
    what = "will be delivered" if request.action == "replay" else "discarded"
    then = f"{left} left to decide about" if left else "admission is open"
    return f"{number} {what}; {then}"


@_operation(operations.prune)
def prune(done: operations.RequestsPruned) -> str:
    return f"{counted(done.removed, 'request')} removed"


@gateway.command()
@click.argument("agent", required=False)
@click.option(
    "--all", "every", is_flag=True, help="End the process that hosts the gateways of all agents."
)
@json_option
@_place_options
def detach(agent: str | None, every: bool, as_json: bool) -> None:
    """Stop an agent's gateway, or with --all the process that hosts all of them.

    What was accepted waits for the next one; the agents themselves are left alone.
    """
    if (agent is None) != every:
        raise click.UsageError("name one agent, or say --all")
    if agent is None:
        from holdfast.runtime.host_process import end_host

        with connected(settings_here(), create=False) as hf:
            pid = end_host(hf)
        answer(to_json({"pid": pid}) if as_json else f"process {pid} has ended, with all gateways")
        return
    done = operations.detach(_here(), operations.GatewayKey(agent=agent))
    answer(to_json(done) if as_json else f"the gateway of {agent} is stopping")
