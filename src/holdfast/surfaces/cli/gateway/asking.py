"""`holdfast gateway prompt | interrupt | cancel | reconcile | prune | detach`."""

import sys
import time
from pathlib import Path
from typing import Any, Literal

import click

from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import EXIT_DONE, STATUS, InvalidValue
from holdfast.kernel.limits import QUEUE_KEEP_LEAST, QUEUE_KEEP_REQUESTS, QUEUE_KEEP_S
from holdfast.kernel.text import counted
from holdfast.surfaces.cli.connection import store_options
from holdfast.surfaces.cli.gateway.options import (
    address_options,
    agent_argument,
    client,
    json_option,
    summary,
    waiting_for,
)
from holdfast.surfaces.cli.output import answer
from holdfast.surfaces.cli.text_input import STDIN, read_stdin

WAIT_S = 3600.0
INTERRUPT_S = 30.0
DAY_S = 86400.0
_EXIT_FAILED = STATUS["refused"].exit
_EXIT_TIMED_OUT = STATUS["lock_timeout"].exit


@click.command()
@agent_argument
@click.argument("text", required=False)
@click.option(
    "--wait",
    is_flag=True,
    help=(
        "Wait until it has ended, and print the answer. Exit status 4 if it failed, 5 if it took "
        "too long."
    ),
)
@click.option(
    "--timeout",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=WAIT_S,
    show_default=True,
    help="Seconds to wait; with --wait.",
)
@click.option("--key", help="An idempotency key of your own: the same again is the same request.")
@click.option("--epoch", type=click.IntRange(0), help="Only if this is the agent's epoch.")
@json_option
@address_options
@store_options
def prompt(
    agent: str,
    text: str | None,
    wait: bool,
    wait_s: float,
    key: str | None,
    epoch: int | None,
    as_json: bool,
    url: str | None,
    token_file: Path | None,
) -> int:
    """Hand a prompt to an agent; without TEXT, or with - for it, it is read from standard input.
    Prints the request's id.
    """
    words = _text(text)
    gateway = client(agent, url, token_file)
    accepted = gateway.prompt(words, idempotency_key=key, expected_epoch=epoch)
    if not wait:
        answer(to_json(accepted) if as_json else accepted["request_id"])
        return EXIT_DONE
    with waiting_for(f"{agent} to answer {accepted['request_id']}"):
        ended = gateway.request(accepted["request_id"], wait_s=wait_s)
    return _ended(ended, as_json)


@click.command()
@agent_argument
@click.option(
    "--wait",
    is_flag=True,
    help="Wait until what it stops has ended too. Exit status 5 if that took too long.",
)
@click.option(
    "--timeout",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=INTERRUPT_S,
    show_default=True,
    help="Seconds for all of it.",
)
@json_option
@address_options
@store_options
def interrupt(
    agent: str, wait: bool, wait_s: float, as_json: bool, url: str | None, token_file: Path | None
) -> int:
    """Stop what the agent is doing, at once: it does not wait in the queue.

    Returns when the agent was told to stop. Exit status 4 if it could not be told, 5 if that took
    too long.
    """
    deadline = time.monotonic() + wait_s
    gateway = client(agent, url, token_file)
    ended = gateway.interrupt(wait_s=wait_s)
    result: dict[str, Any] = ended.get("result") or {}
    if ended["state"] != "completed":
        return _ended(ended, as_json)
    stopped = result.get("stopped")
    if wait and stopped:
        with waiting_for(f"{stopped} to end"):
            ended = gateway.request(stopped, wait_s=max(deadline - time.monotonic(), 0))
    answer(
        to_json(ended)
        if as_json
        else _interrupted(agent, result, ended if wait and stopped else None)
    )
    return EXIT_DONE if ended["state"] in ("completed", "failed") else _EXIT_TIMED_OUT


@click.command()
@agent_argument
@click.argument("request_id")
@json_option
@address_options
@store_options
def cancel(
    agent: str, request_id: str, as_json: bool, url: str | None, token_file: Path | None
) -> None:
    """Cancel a request that was not begun."""
    ended = client(agent, url, token_file).cancel(request_id)
    answer(to_json(ended) if as_json else summary(ended))


@click.command()
@agent_argument
@click.argument("action", type=click.Choice(["replay", "discard"]))
@click.option(
    "--epoch",
    type=click.IntRange(0),
    required=True,
    help="The epoch that you decide about, as the status shows it.",
)
@click.option(
    "--request",
    "requests",
    multiple=True,
    metavar="ID",
    help="Only this one; repeatable.  [default: all]",
)
@json_option
@address_options
@store_options
def reconcile(
    agent: str,
    action: Literal["replay", "discard"],
    epoch: int,
    requests: tuple[str, ...],
    as_json: bool,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Decide what becomes of the requests that wait for an agent that was replaced: deliver them to
    the new one, or not.
    """
    done = client(agent, url, token_file).reconcile(
        action, epoch=epoch, requests=list(requests) or None
    )
    if as_json:
        answer(to_json(done))
        return
    number, left = len(done["requests"]), len(done["left"])
    words = (
        f"{counted(number, 'request')} {'will be delivered' if action == 'replay' else 'discarded'}"
    )
    answer(f"{words}; {left} left to decide about" if left else f"{words}; admission is open")


@click.command()
@agent_argument
@click.option(
    "--keep",
    type=click.IntRange(0),
    help=f"How many finished requests to keep.  [default: {QUEUE_KEEP_REQUESTS}]",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(0),
    help=(
        f"For how many days to keep them, 1 or more.  [default: {QUEUE_KEEP_S / DAY_S:g}, and the "
        f"last {QUEUE_KEEP_LEAST}]"
    ),
)
@json_option
@address_options
@store_options
def prune(
    agent: str,
    keep: int | None,
    keep_days: float | None,
    as_json: bool,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Remove finished requests beyond the bounds, with their idempotency keys.

    Those that ended within a day stay, whatever the bounds: a prompt that is asked again must not
    be delivered again.
    """
    keep_s = None if keep_days is None else keep_days * DAY_S
    done = client(agent, url, token_file).prune(keep_finished=keep, keep_s=keep_s)
    answer(to_json(done) if as_json else f"{counted(done['removed'], 'request')} removed")


@click.command()
@agent_argument
@json_option
@address_options
@store_options
def detach(agent: str, as_json: bool, url: str | None, token_file: Path | None) -> None:
    """Stop an agent's gateway. What was accepted waits for the next one; the agent itself is left
    alone.
    """
    said = client(agent, url, token_file).detach()
    answer(to_json(said) if as_json else f"the gateway of {agent} is stopping")


def _interrupted(agent: str, result: dict[str, Any], stopped: dict[str, Any] | None) -> str:
    """What an interrupt did, and what became of what it stopped, if that was waited for."""
    if result.get("disposition") != "accepted":
        return f"nothing to stop: {result.get('detail') or 'it was idle'}"
    if stopped is not None:
        return f"{agent} was interrupted: {summary(stopped)}"
    return f"{agent} was interrupted" + (
        f", which ends {result['stopped']}" if result.get("stopped") else ""
    )


def _text(text: str | None) -> str:
    if text is not None and text != STDIN:
        return text
    if text is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InvalidValue(
            "there is no prompt: give it as an argument, or on standard input", field="prompt"
        )
    return read_stdin("prompt")


def _ended(request: dict[str, Any], as_json: bool) -> int:
    text = (request.get("result") or {}).get("text")
    done = request["state"] == "completed"
    answer(to_json(request) if as_json else str(text) if done and text else summary(request))
    if done:
        return EXIT_DONE
    return _EXIT_FAILED if request["state"] == "failed" else _EXIT_TIMED_OUT
