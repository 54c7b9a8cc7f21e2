"""The command line in unusual places and with broken outputs: each gives one clear line, and
nothing is lost.
"""

import json
import logging
import os
from pathlib import Path

import pytest

import holdfast as package
from holdfast.kernel.errors import InvalidValue, NotFound
from holdfast.runtime import configuration
from holdfast.stores.url import user_path
from tests.surfaces.command import CommandLine

pytestmark = pytest.mark.prove

REGISTER = ["jobs", "register", "--prompt", "x", "--agent-session", "tmux:a", "--id", "the-job"]
PICK = "holdfast jobs pick --agent-session tmux:a"


@pytest.fixture
def holdfast(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/state/store.sqlite")


def status_of(holdfast: CommandLine) -> tuple[str, int]:
    job = json.loads(holdfast("jobs", "get", "--job", "the-job", "--json").out)
    return job["status"], job["attempt"]


# Output


@pytest.mark.parametrize("words", ["", " --json", " --wait 5", " --wait 0.5"])
def test_a_claim_that_cannot_be_reported_is_put_back(holdfast: CommandLine, words: str) -> None:
    """By both parsers; the last form is left to the full one."""
    holdfast(*REGISTER)
    ran = holdfast.shell(f"{PICK}{words} >/dev/full")
    assert (ran.status, ran.err.count("\n")) == (6, 1)
    assert "the-job was picked" in ran.err
    assert "pending again" in ran.err
    assert status_of(holdfast) == ("pending", 1)


def test_a_claim_into_a_closed_pipe_is_put_back(holdfast: CommandLine) -> None:
    holdfast(*REGISTER)
    # The reader has gone before anything is written: it opens the pipe and leaves.
    ran = holdfast.shell(f"mkfifo p; (: <p) & exec 3>p; wait; {PICK} >&3")
    assert ran.status == 6
    assert "pending again" in ran.err
    assert status_of(holdfast) == ("pending", 1)


@pytest.mark.parametrize(
    "command", [PICK, "holdfast jobs list", "holdfast " + " ".join(REGISTER), "holdfast --help"]
)
def test_without_standard_output_nothing_is_done(holdfast: CommandLine, command: str) -> None:
    ran = holdfast.shell(f"{command} >&-")
    assert (ran.status, ran.err.count("\n")) == (6, 1)
    assert "nothing was done" in ran.err
    assert not (holdfast.folder / "state").exists()


def test_without_standard_error_the_status_still_reports_the_result(holdfast: CommandLine) -> None:
    ran = holdfast.shell("holdfast jobs get --job nosuch 2>&-")
    assert (ran.status, ran.out) == (1, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    ["jobs list", "jobs list --json", "log", "store info", "store check", "--help", "tour"],
)
def test_a_full_disk_behind_the_output_is_one_error(
    holdfast: CommandLine, command: str, unbuffered: str
) -> None:
    holdfast(*REGISTER)
    holdfast.environment["PYTHONUNBUFFERED"] = unbuffered
    ran = holdfast.shell(f"holdfast {command} >/dev/full")
    assert (ran.status, ran.err) == (
        6,
        "holdfast: standard output cannot be written: No space left on device\n",
    )


def test_a_change_whose_answer_is_lost_says_that_it_was_made(holdfast: CommandLine) -> None:
    ran = holdfast.shell("holdfast " + " ".join(REGISTER) + " >/dev/full")
    assert (ran.status, ran.err.count("\n")) == (6, 1)
    assert "the change was made" in ran.err
    assert status_of(holdfast) == ("pending", 0)
    ran = holdfast.shell(
        "mkfifo p; (: <p) & exec 3>p; wait; holdfast jobs status --job the-job --set cancelled >&3"
    )
    assert (ran.status, "the change was made" in ran.err) == (6, True)


def test_a_closed_pipe_of_a_list_is_no_error(holdfast: CommandLine) -> None:
    holdfast(*REGISTER)
    for command in ("jobs list", "jobs list --json", "log", "--help"):
        ran = holdfast.shell(f"rm -f p; mkfifo p; (: <p) & exec 3>p; wait; holdfast {command} >&3")
        assert ran == (0, "", ""), command


def test_a_locale_without_the_letters_loses_nothing(holdfast: CommandLine) -> None:
    holdfast(
        "jobs",
        "register",
        "--prompt",
        "here \u2192 there",
        "--agent-session",
        "tmux:a",
        "--id",
        "the-job",
    )
    holdfast.environment["PYTHONIOENCODING"] = "latin-1"
    assert "here \\u2192 there" in holdfast("jobs", "list").out
    assert (
        json.loads(holdfast("jobs", "pick", "--agent-session", "tmux:a", "--json").out)["prompt"]
        == "here \u2192 there"
    )


def test_control_characters_are_written_out(holdfast: CommandLine) -> None:
    evil = "red \x1b[31m bell \x07 \x9b2J \u202eabc\nstatus  completed"
    registered = holdfast(
        "jobs", "register", "--prompt", evil, "--agent-session", "tmux:a", "--id", "the-job"
    )
    assert registered.status == 0
    holdfast("jobs", "status", "--job", "the-job", "--set", "cancelled", "--error", evil)
    for words in (["jobs", "list"], ["jobs", "get", "--job", "the-job"], ["log"]):
        for shown in (holdfast(*words).out, holdfast.on_a_terminal(*words, columns=200)):
            assert "the-job" in shown
            assert not {"\x07", "\x9b", "\u202e"} & set(shown)
            assert "\x1b[31m" not in shown
    got = holdfast("jobs", "get", "--job", "the-job").out
    assert "\\x1b[31m" in got
    assert [line.split()[1] for line in got.splitlines() if line.startswith("status")] == [
        "cancelled"
    ]


def test_invisible_characters_are_written_out_except_in_json(
    holdfast: CommandLine,
) -> None:
    """Zero-width and tag characters reached the terminal, and were not seen there."""
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "rm -rf")
    evil = f"sort\u200b it\u00ad{hidden} \u2066x\ufeff ⚠\ufe0f done"
    holdfast("jobs", "register", "--prompt", evil, "--agent-session", "tmux:a", "--id", "the-job")
    holdfast("jobs", "status", "--job", "the-job", "--set", "cancelled", "--error", evil)
    written = "sort\\u200b it\\xad\\U000e0072\\U000e006d"
    for words in (["jobs", "list"], ["jobs", "get", "--job", "the-job"], ["log"]):
        for seen in (holdfast(*words).out, holdfast.on_a_terminal(*words, columns=400)):
            assert "the-job" in seen
            assert not set(seen) & {"\u200b", "\u00ad", "\u2066", "\ufeff", *hidden}
    got = holdfast("jobs", "get", "--job", "the-job").out
    assert written in got and "⚠\ufe0f done" in got
    assert json.loads(holdfast("jobs", "get", "--job", "the-job", "--json").out)["prompt"] == evil


def test_no_new_name_looks_like_another(holdfast: CommandLine) -> None:
    for words in (
        ["locks", "acquire", "router\u200b-1", "--by", "x", "--ttl", "9"],
        ["holds", "take", "gpu", "--by", "x\ufe0f", "--ttl", "9"],
    ):
        ran = holdfast(*words)
        assert ran.status == 2 and "Leave it out" in ran.err and ran.err.count("\n") == 1, ran
    assert holdfast("locks", "status", "router\u200b-1").status == 0


@pytest.mark.parametrize("columns", [80, 140])
def test_a_list_on_a_terminal_is_a_line_a_job(holdfast: CommandLine, columns: int) -> None:
    holdfast(
        *REGISTER[:2],
        "--prompt",
        "a long story " * 20,
        "--agent-session",
        "tmux:" + "long" * 20,
        "--id",
        "k3Xv9QaZ",
    )
    lines = holdfast.on_a_terminal("jobs", "list", columns=columns).splitlines()
    assert len(lines) == 2
    assert "k3Xv9QaZ" in lines[1]
    assert "pending" in lines[1]
    assert "\u2026" in lines[1]
    assert len(lines[1]) <= columns


def test_states_have_colours_on_a_terminal_and_nowhere_else(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    holdfast("jobs", "register", "--prompt", "error", "--agent-session", "running", "--id", "job-1")
    holdfast("jobs", "pick", "--agent-session", "running")
    red, cyan = "\x1b[31m", "\x1b[36m"
    row = holdfast.on_a_terminal("jobs", "list", columns=100).splitlines()[1]
    assert row.count("\x1b[36m") == 1 and f"{cyan}running\x1b[0m" in row
    holdfast("jobs", "status", "job-1", "--set", "error")
    row = holdfast.on_a_terminal("jobs", "list", columns=100).splitlines()[1]
    assert row.count(red) == 1 and row.index(red) < row.index("running"), (
        "the status, and neither label nor prompt"
    )
    plain = CommandLine(tmp_path, **{**holdfast.environment, "NO_COLOR": "1"})
    assert "\x1b[3" not in plain.on_a_terminal("jobs", "list", columns=100)
    assert "\x1b" not in holdfast("jobs", "list").out


def test_an_empty_journal_says_so_on_a_terminal(holdfast: CommandLine) -> None:
    assert "No entries" in holdfast.on_a_terminal("log")
    assert holdfast("log").out == ""


# Places


def test_looking_makes_nothing(holdfast: CommandLine) -> None:
    assert holdfast("jobs", "list") == (0, "", "")
    assert holdfast("jobs", "list", "--json").out == "[]\n"
    assert holdfast("log") == (0, "", "")
    assert holdfast("jobs", "get", "--job", "nosuch").status == 1
    assert holdfast("store", "check").status == 1
    assert not (holdfast.folder / "state").exists()


def test_a_store_that_is_not_there_takes_no_change(tmp_path: Path) -> None:
    with package.connect(f"sqlite:{tmp_path}/s.sqlite", create=False) as hf:
        assert hf.jobs.list_jobs() == []
        with pytest.raises(NotFound, match="no store"):
            hf.jobs.register_job("x", agent="a", agent_session="s")
        with pytest.raises(NotFound, match="no store"):
            hf.jobs.pick_pending("s", wait_s=5)
    assert list(tmp_path.iterdir()) == []
    with package.connect(f"sqlite:{tmp_path}/s.sqlite") as hf:
        hf.jobs.register_job("x", agent="a", agent_session="s")
    with package.connect(f"sqlite:{tmp_path}/s.sqlite", create=False) as hf:
        assert hf.jobs.pick_pending("s") is not None


def test_a_working_folder_that_is_gone(holdfast: CommandLine) -> None:
    ran = holdfast.shell("mkdir gone; cd gone; rmdir ../gone; holdfast jobs list")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "working folder" in ran.err


def test_a_parent_that_may_not_be_entered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forbidden(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "lstat", forbidden)
    with pytest.raises(InvalidValue, match="cannot look for"):
        configuration.load_settings()


def test_a_store_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from holdfast.kernel.errors import StoreUnavailable
    from holdfast.stores import url as urls

    def forbidden(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", forbidden)
    with pytest.raises(StoreUnavailable, match="permissions"):
        urls.there(tmp_path / "s.sqlite")


def test_no_home_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # As for a user id that the password file does not know.
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(InvalidValue, match="HOME"):
        configuration.default_store({})
    assert (
        configuration.default_store({"XDG_STATE_HOME": "/x"}) == "sqlite:/x/holdfast/store.sqlite"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('store = "sqlite:a\\u0000b"', "NUL"),
        ('store = "postgresql://a\\u0000b"', "NUL"),
        ("x = " + "[" * 20_000, "cannot be read"),
        (
            "store = sqlite:lab",
            "is not TOML: Invalid value (at line 1, column 9). Texts stand in quotes",
        ),
        ('store = ""', "not a store"),
    ],
    ids=["nul", "nul in an address", "deep", "unquoted", "empty"],
)
def test_settings_that_cannot_be(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "holdfast.toml").write_text(text)
    holdfast = CommandLine(tmp_path)
    for words in (["jobs", "list"], ["jobs", "pick", "--agent-session", "x"]):
        ran = holdfast(*words)
        if text == 'store = ""':
            # As an empty variable of the environment: nothing was said.
            assert ran.status in (0, 3)
            continue
        assert (ran.status, says in ran.err) == (2, True), ran


def test_the_file_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_bytes('actor = "caf\u00e9"'.encode())
    holdfast = CommandLine(tmp_path, LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert holdfast(*REGISTER).status == 0
    assert json.loads(holdfast("log", "--json").out)["actor"] == "caf\u00e9"
    (tmp_path / "holdfast.toml").write_bytes('store = "sqlite:caf\u00e9.sqlite"'.encode())
    ran = holdfast(*REGISTER)
    assert (ran.status, "locale" in ran.err) == (2, True)


def test_a_user_without_a_name(tmp_path: Path) -> None:
    holdfast = CommandLine(
        tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/s.sqlite", USER="a\x1b[31mb"
    )
    assert holdfast(*REGISTER).status == 0
    assert json.loads(holdfast("log", "--json").out)["actor"].startswith(f"uid-{os.getuid()}/")


def test_store_info_shows_what_chose_the_store(tmp_path: Path) -> None:
    def chosen(holdfast: CommandLine, *words: str) -> str:
        return str(json.loads(holdfast("store", "info", "--json", *words).out)["chosen_by"])

    assert chosen(CommandLine(tmp_path)) == "default"
    (tmp_path / "holdfast.toml").write_text('namespace = "lab"')
    assert chosen(CommandLine(tmp_path)) == "default"
    (tmp_path / "holdfast.toml").write_text('store = "sqlite:x.sqlite"')
    assert chosen(CommandLine(tmp_path)) == str(tmp_path / "holdfast.toml")
    assert chosen(CommandLine(tmp_path, HOLDFAST_STORE="memory:")) == "HOLDFAST_STORE"
    assert (
        chosen(CommandLine(tmp_path, HOLDFAST_STORE="memory:"), "--store", "sqlite:y") == "--store"
    )


def test_store_info_shows_where_a_database_is_and_no_password(tmp_path: Path) -> None:
    ran = CommandLine(tmp_path, HOLDFAST_STORE="postgresql://me:hush@db.example/jobs")(
        "store", "info"
    )
    assert "db.example" in ran.out
    assert "jobs" in ran.out
    assert "hush" not in ran.out
    assert CommandLine(tmp_path, HOLDFAST_STORE="nonsense")("store", "info").status == 2


def test_a_path_behind_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert user_path("~/x") == Path("/home/me/x")


# The program itself


def test_a_bug_is_status_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.surfaces.cli import entry

    assert entry.guarded(lambda: dict[str, int]()["nothing"]) == 70
    assert "This is a bug" in capsys.readouterr().err


def test_connecting_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="holdfast.runtime.connection"):
        package.connect("memory:", namespace="lab").close()
    assert caplog.messages == ["connected store=memory namespace=lab"]


def test_verbose_shows_something(holdfast: CommandLine) -> None:
    assert "connected store=sqlite namespace=default" in holdfast("-v", "jobs", "list").err
    assert holdfast("jobs", "list").err == ""


def test_the_drivers_own_remarks_stay_off_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from holdfast.surfaces.cli import logs, root

    driver = logging.getLogger("psycopg")
    before = driver.level
    try:
        for quieten in (
            lambda: root.run(["--store", "memory:", "store", "info"]),
            logs.listen,
        ):
            driver.setLevel(logging.NOTSET)
            monkeypatch.setitem(sys.modules, "psycopg", sys)
            quieten()
            assert not logging.getLogger("psycopg.pool").isEnabledFor(logging.WARNING)
    finally:
        driver.setLevel(before)
