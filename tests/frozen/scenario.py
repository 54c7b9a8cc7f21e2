"""What commands and HTTP requests answer: the parity table, as statuses and shapes."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

import holdfast
from tests.frozen import inside
from tests.frozen.shape import general, indented, shape, shape_of_text

_COMMAND = "parity-command"
_MORE = (
    "network routers status --json",
    "jobs watch job-1 --timeout 0 --json",
    "store check --json",
    "store backup {folder}/backup --json",
    "store copy {url} sqlite:{folder}/copy.sqlite --json",
    "store begin-era --json",
    "store remove jobs nosuch --json",
    "store restore {folder}/nosuch --yes --json",
    "store restore {folder}/backup --yes --json",
    "doctor --json",
    "nosuch",
    "jobs list --nosuch",
    "jobs list --limit one",
)
"""Commands without a row in the parity table, run after it on the same store."""

Answers = dict[str, str]
"""A block of text for each case, by its name."""


class Seen(NamedTuple):
    """What a run of the scenario showed."""

    answers: Answers
    metrics: str


def play(url: str, folder: Path) -> Seen:
    """Run every row of the parity table on a store, over the command line and over HTTP."""
    answers: Answers = {}
    times: Counter[str] = Counter()
    heard: list[httpx.Response] = []
    with _stage(url, folder) as (command, server):
        server.http.event_hooks["response"] = [heard.append]
        cases = [case for case in inside.TABLE if inside.OPERATIONS[case.operation].served]
        for number, case in enumerate(cases, 1):
            name = f"{case.operation} {case.code or 'done'}"
            times[name] += 1
            name = name if times[name] == 1 else f"{name} ({times[name]})"
            printed = _by_command(url, command, case, number)
            first, *body = _by_http(server, heard, case, number)
            answers[name] = "\n".join([*printed, first, *_beside(body, printed[2:])])
        for words in _MORE:
            facts = {"url": url, "folder": str(folder)}
            answers[f"holdfast {words}"] = "\n".join(_ran(url, words, facts))
        metrics = inside.by_command(url, _COMMAND, _case("metrics"), {}).out.decode()
    return Seen(answers, "\n".join(_metrics(metrics)) + "\n")


def _beside(body: list[str], printed: list[str]) -> list[str]:
    """Return the lines of a body, or a line that says that the command printed the same."""
    if len(body) > 1 and body == printed:
        return ["  as printed"]
    if len(body) > 1 and sorted(body) == sorted(printed):
        return ["  as printed, with the keys in another order"]
    return body


def texts(answers: Answers) -> dict[str, str]:
    """Return the files of answers, one for each area."""
    areas: dict[str, Answers] = {}
    for name, block in answers.items():
        area = "more" if name.startswith("holdfast ") else name.partition(".")[0]
        areas.setdefault(area, {})[name] = block
    return {f"answers/{area}.txt": _joined(blocks) for area, blocks in areas.items()}


def differing(answers: Answers, usual: Mapping[str, str]) -> str:
    """Return those answers that differ from the usual ones, which are files of answers."""
    blocks = {}
    for text in usual.values():
        for block in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
            name, _, rest = block.partition("\n")
            blocks[name] = rest.strip("\n")
    found = {name: block for name, block in answers.items() if blocks.get(name) != block}
    return _joined(found) or "(nothing differs)\n"


def _joined(answers: Answers) -> str:
    return "\n".join(f"== {name}\n{block}\n" for name, block in answers.items())


@contextmanager
def _stage(url: str, folder: Path) -> Iterator[tuple[holdfast.Holdfast, inside.Served]]:
    with (
        inside.broker_running(folder / "broker") as broker,
        inside.surroundings(folder),
        holdfast.connect(url, namespace=_COMMAND) as command,
        holdfast.connect(url, namespace="parity-http") as http,
        inside.served(http) as server,
        inside.gateway_beside(command),
        inside.gateway_beside(http),
    ):
        os.environ["PARITY_BROKER_PORT"] = str(broker.port)
        yield command, server


def _case(words: str) -> inside.Case:
    return inside.Case("", lambda hf, facts: None, words)


def _by_command(url: str, hf: holdfast.Holdfast, case: inside.Case, number: int) -> list[str]:
    facts = inside.facts_for(case, hf, number)
    if case.words is None:
        # The part of the store that commands use goes through the same states as the other.
        inside.by_library(hf, case, facts)
        return []
    return _ran(url, case.words, facts)


def _ran(url: str, words: str, facts: Mapping[str, Any]) -> list[str]:
    ran = inside.by_command(url, _COMMAND, _case(words), dict(facts))
    out = ran.out.decode()
    shown = words if words.isprintable() else repr(words)[1:-1]
    shown = re.sub(rf"\b{os.getpid()}\b", "{pid}", shown)
    if words.startswith("doctor"):
        return [f"$ holdfast {shown}", *indented(_doctor(out))]
    lines = [f"$ holdfast {shown}", f"exit {ran.status}"]
    if ran.status and not out and not ran.err.startswith("holdfast: "):
        lines.append(f"  stderr: {ran.err[:20]!r}")
    return [*lines, *indented(shape_of_text(out) if out else [])]


def _doctor(out: str) -> list[str]:
    """Return keys and names of checks: all else depends on the machine."""
    said = json.loads(out)
    keys = sorted({" ".join(finding) for finding in said["findings"]})
    checks = dict.fromkeys(finding["check"] for finding in said["findings"])
    return [" ".join(said), *keys, *checks]


def _by_http(
    server: inside.Served, heard: list[httpx.Response], case: inside.Case, number: int
) -> list[str]:
    facts = inside.facts_for(case, server.hf, number)
    heard.clear()
    inside.by_http(server.http, case, facts)
    [response] = heard
    operation = inside.OPERATIONS[case.operation]
    line = f"{operation.method} {operation.path} -> {response.status_code}"
    return [line, *indented(shape(response.json()) if response.content else ["(empty)"])]


def _metrics(text: str) -> list[str]:
    """Return name, type and labels of each metric."""
    labels: dict[str, set[str]] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("#"):
            sample, _, rest = line.partition("{")
            names = re.findall(r'(\w+)="', rest.rpartition("}")[0])
            labels.setdefault(general(sample.split()[0]), set()).update(names)
    declared = [f"{name} {kind}" for name, kind in sorted(kinds.items())]
    return [*declared, "", *(f"{name} {sorted(found)}" for name, found in sorted(labels.items()))]
