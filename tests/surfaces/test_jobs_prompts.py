"""Prompts that no argument could carry: from standard input, from a file, over HTTP and MCP, whole
to the worker.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.connection import connect
from tests.surfaces.command import CommandLine
from tests.surfaces.mcp_agent import agents_on
from tests.surfaces.server_http import Served, served

LONG = "sortiere die Äpfel\n" * 10_000 + "end"
"""About 200 kB; an argument may have 128."""


@pytest.fixture(params=["sqlite", "files", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"{request.param}:{tmp_path}/store"


@pytest.fixture
def holdfast(tmp_path: Path, url: str) -> CommandLine:
    return CommandLine(tmp_path, HOLDFAST_STORE=url)


@pytest.mark.parametrize("way", ["stdin", "file", "file of stdin"])
def test_a_long_prompt_comes_whole_to_the_worker(
    holdfast: CommandLine, tmp_path: Path, way: str
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(f"{LONG}\n")
    words = {
        "stdin": ["--prompt", "-"],
        "file": ["--prompt-file", str(path)],
        "file of stdin": ["--prompt-file", "-"],
    }[way]
    stdin = None if way == "file" else path.read_bytes()
    for label in ("picked", "run"):
        ran = holdfast(
            "jobs", "register", *words, "--agent-session", label, "--id", label, stdin=stdin
        )
        assert (ran.status, ran.out, ran.err) == (0, f"{label}\n", "")
    picked = holdfast("jobs", "pick", "--agent-session", "picked", "--json")
    assert json.loads(picked.out)["prompt"] == LONG
    # Whole on the command's standard input, too long for its environment, and a line in a list.
    script = 'cat > got; echo "${HOLDFAST_JOB_PROMPT-none}"'
    ran = holdfast(
        "jobs",
        "run",
        "--agent-session",
        "run",
        "--once",
        "-q",
        "--stdin",
        "prompt",
        "--",
        "sh",
        "-c",
        script,
    )
    assert (ran.status, ran.out) == (0, "none\n")
    assert (tmp_path / "got").read_bytes() == LONG.encode()
    assert max(map(len, holdfast("jobs", "list").out.splitlines())) < 200
    assert holdfast("jobs", "logs", "run").out.count("\n") == 5


def test_a_dash_in_a_prompt_is_only_a_dash(holdfast: CommandLine) -> None:
    holdfast("jobs", "register", "--prompt", "- a\n- b", "--agent-session", "s", "--id", "list")
    assert json.loads(holdfast("jobs", "get", "list", "--json").out)["prompt"] == "- a\n- b"


@pytest.mark.parametrize(
    ("words", "stdin", "says"),
    [
        (["--prompt", "-"], b"", "prompt is empty"),
        (["--prompt", "-"], b"\xff\xfe", "not UTF-8"),
        (["--prompt-file", "nosuch"], None, "No such file"),
        (["--prompt-file", "."], None, "Is a directory"),
        (["--prompt-file", "a", "--prompt", "b"], None, "one of --prompt and --prompt-file"),
        ([], None, "one of --prompt and --prompt-file"),
        (["--prompt", "-"], b"x" * 800_000, "the prompt has 800002 bytes"),
    ],
)
def test_an_impossible_prompt_fails_in_one_line(
    tmp_path: Path, words: list[str], stdin: bytes | None, says: str
) -> None:
    holdfast = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/s.sqlite")
    ran = holdfast("jobs", "register", "--agent-session", "s", *words, stdin=stdin)
    assert ran.status == 2
    assert says in ran.err and ran.err.count("\n") == 1
    assert holdfast("jobs", "list", "--json").out == "[]\n"


@pytest.fixture
def server(url: str) -> Iterator[Served]:
    with connect(url) as hf, served(hf) as made:
        yield made


@pytest.mark.prove
def test_a_long_prompt_over_http_and_on_the_page(server: Served) -> None:
    made = server.http.post("/v1/jobs", json={"prompt": LONG, "agent_session": "s"})
    assert made.json()["prompt"] == LONG
    assert server.http.get("/v1/jobs").json()[0]["prompt"] == LONG
    [line] = server.http.get("/v1/overview/jobs").json()["lines"]
    assert len(line["prompt"]) <= 200
    assert (
        len(server.http.get(f"/v1/overview/jobs/{line['job_id']}").json()["job"]["prompt"])
        == 20_000
    )
    assert server.http.post("/v1/queue/pick", json={"agent_session": "s"}).json()["prompt"] == LONG


@pytest.mark.prove
def test_a_long_prompt_over_mcp(tmp_path: Path) -> None:
    with agents_on(f"sqlite:{tmp_path}/s.sqlite", tmp_path) as agents:
        agent = agents("tmux:a", "--queue", "q")
        made = agent.call("create_job", prompt=LONG, queue="q")["job"]
        assert agent.call("claim_job")["job"]["prompt"] == LONG == made["prompt"]
