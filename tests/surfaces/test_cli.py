"""The command line as a user meets it: output, exit statuses, one-line errors that say what to do
next.
"""

import json
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast.surfaces.cli import root
from tests.harness.timeouts import PATIENCE_S
from tests.surfaces.command import CommandLine


@pytest.fixture
def holdfast(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/state/store.sqlite")


def register(holdfast: CommandLine, *more: str) -> str:
    ran = holdfast("jobs", "register", "--prompt", "sort it", "--agent-session", "tmux:a", *more)
    assert (ran.status, ran.err) == (0, "")
    return ran.out.strip()


def test_a_job_from_register_to_completed(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    assert holdfast("jobs", "pick", "--agent-session", "tmux:a") == (0, f"{job_id}\n", "")
    assert holdfast("jobs", "pick", "--agent-session", "tmux:a") == (3, "", "")
    done = holdfast("jobs", "status", "--job", job_id, "--set", "completed", "--result", "sorted")
    assert (done.status, done.out) == (0, f"{job_id} is completed\n")
    shown = json.loads(holdfast("jobs", "get", "--job", job_id, "--json").out)
    assert (shown["status"], shown["result"], shown["attempt"], shown["agent_session"]) == (
        "completed",
        "sorted",
        1,
        "tmux:a",
    )
    assert shown["created_at"].endswith("Z")
    listed = json.loads(holdfast("jobs", "list", "--json").out)
    assert [job["job_id"] for job in listed] == [job_id]
    row = holdfast("jobs", "list").out.split("\t")
    assert row[:3] == [job_id, "completed", "tmux:a"]
    logged = [json.loads(line)["kind"] for line in holdfast("log", "--json").out.splitlines()]
    assert logged == ["job.registered", "job.status_changed", "job.status_changed"]
    assert holdfast("store", "check").out == "sound\n"


@pytest.mark.parametrize("way", [["--job"], []], ids=["with --job", "as JOB"])
def test_a_job_is_named_either_way_wherever_one_is(tmp_path: Path, way: list[str]) -> None:
    nobody = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "9"}
    holdfast = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/store.sqlite", **nobody)
    job = [*way, register(holdfast)]
    token = json.loads(holdfast("jobs", "pick", "--agent-session", "tmux:a", "--json").out)["token"]
    assert holdfast("jobs", "heartbeat", *job, "--token", str(token)).status == 0
    assert holdfast("jobs", "requeue", *job).status == 0
    assert holdfast("jobs", "status", *job, "--set", "running").status == 0
    assert holdfast("jobs", "publish", *job, "progress").out == "1\n"
    assert holdfast("jobs", "cancel", *job).status == 0
    assert holdfast("jobs", "get", *job).status == 0
    assert "cancelled" in holdfast("jobs", "logs", *job).out
    assert holdfast("jobs", "watch", *job).status == 1
    twice = holdfast("jobs", "get", "--job", job[-1], job[-1])
    assert twice.status == 2 and "once" in twice.err
    assert "missing option '--job'" in holdfast("jobs", "get").err


def test_a_stale_token_is_refused_with_status_4(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    token = str(
        json.loads(holdfast("jobs", "pick", "--agent-session", "tmux:a", "--json").out)["token"]
    )
    assert holdfast("jobs", "status", "--job", job_id, "--set", "pending").status == 0
    ran = holdfast("jobs", "status", "--job", job_id, "--set", "completed", "--token", token)
    assert ran.status == 4
    assert "stop work" in ran.err


BAD = [
    (["jobs", "get", "--job", "nosuch"], 1, "holdfast jobs list"),
    (["jobs", "get", "--job", "../x"], 2, "job id"),
    (["jobs", "get", "--job", "x" * 10_000], 2, "job id"),
    (["jobs", "get", "--job", "\U0001f600"], 2, "job id"),
    (["jobs", "status", "--job", "nosuch", "--set", "completed"], 1, "no job nosuch"),
    (["jobs", "status", "--job", "a", "--set", "finished"], 1, "finished"),
    (["jobs", "pick", "--agent-session", "a\nb"], 2, "agent session"),
    (["jobs", "pick"], 2, "--agent-session"),
    (["jobs", "pick", "--agent-session", "x", "--pid", "999999999"], 1, "no live process"),
    (["jobs", "register", "--prompt", " ", "--agent-session", "x"], 2, "prompt"),
    (
        ["jobs", "register", "--prompt", "x", "--agent-session", "x", "--timeout", "-1"],
        2,
        "timeout_sec",
    ),
    (["jobs", "register", "--prompt", "x", "--agent-session", "x", "--timeout", "soon"], 2, "soon"),
    (["jobs", "list", "--store", "redis://x"], 2, "sqlite:PATH"),
    (["jobs", "list", "--store", "nonsense"], 2, "sqlite:PATH"),
    (["jobs", "list", "--namespace", "a/b"], 2, "namespace"),
    (["log", "--since", "yesterday"], 2, "15m"),
    (["log", "--since", "2026-01-01T00:00:00"], 2, "time zone"),
    (["log", "--since", "99999999999999d"], 2, "calendar"),
    (["log", "--since", "999999d"], 2, "calendar"),
    (["log", "--since", "9" * 5000 + "d"], 2, "calendar"),
    (["jobs", "list", "--store", ""], 2, "empty"),
    (["jobs", "list", "--namespace", ""], 2, "empty"),
    (["jobs", "list", "--store", "./x.sqlite"], 2, "did you mean sqlite:./x.sqlite?"),
    (["jobs", "list", "--store", "sqlite:~nosuchuser/x"], 2, "home folder"),
    (["jobs", "list", "--store", "sqlite:/" + "x" * 300], 6, "too long"),
    (["store", "check", "--store", "sqlite:/" + "x" * 300], 6, "too long"),
    (["store", "restore", "nosuch"], 1, "no backup"),
    (["store", "check", "--store", "sqlite:elsewhere.sqlite"], 1, "no store"),
    (["nosuch"], 2, "nosuch"),
]


@pytest.mark.parametrize(
    ("words", "status", "says"), BAD, ids=[" ".join(words)[:50] for words, _, _ in BAD]
)
def test_bad_input_gets_one_clear_error(
    holdfast: CommandLine, words: list[str], status: int, says: str
) -> None:
    ran = holdfast(*words)
    assert ran.status == status, ran
    assert says in ran.err
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert "\0" not in ran.err


def test_an_impossible_transition_is_status_1(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    ran = holdfast("jobs", "status", "--job", job_id, "--set", "completed")
    assert ran.status == 1
    assert "possible: cancelled, running" in ran.err


def test_a_damaged_store_is_status_7(holdfast: CommandLine, tmp_path: Path) -> None:
    junk = tmp_path / "junk.sqlite"
    for content, advice in (
        (b"SQLite format 3\0" + b"junk" * 4000, "store restore FILE"),
        (b"junk" * 4000, "give --store"),
    ):
        junk.write_bytes(content)
        for words in (
            ["jobs", "list"],
            ["jobs", "pick", "--agent-session", "x"],
            ["store", "check"],
            ["log"],
        ):
            ran = holdfast(*words, "--store", f"sqlite:{junk}")
            assert ran.status == 7 and advice in ran.err, ran


def test_a_damaged_job_hides_no_other_and_can_be_taken_out(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    damaged, sound = register(holdfast), register(holdfast)
    raw = sqlite3.connect(tmp_path / "state" / "store.sqlite")
    with raw:
        raw.execute("UPDATE s_jobs SET value = '{\"half\"' WHERE key = ?", (damaged,))
    raw.close()
    listed = holdfast("jobs", "list")
    assert (listed.status, listed.out.split("\t")[0]) == (7, sound)
    assert f"holdfast store remove jobs {damaged}" in listed.err
    picked = holdfast("jobs", "pick", "--agent-session", "tmux:a")
    assert (picked.status, picked.out) == (0, f"{sound}\n")
    assert picked.err.startswith(f"holdfast: skipped space=jobs key={damaged}: ")
    assert picked.err.count("\n") == 1
    assert holdfast("store", "check").status == 7
    assert holdfast("store", "remove", "jobs", damaged).status == 0
    assert holdfast("store", "remove", "jobs", damaged).status == 1
    assert holdfast("store", "remove", "nosuch", damaged).status == 2
    assert holdfast("store", "check").out == "sound\n"
    [logged] = [
        json.loads(line)
        for line in holdfast("log", "--json", "--subject", f"jobs/{damaged}").out.splitlines()
    ]
    assert (logged["kind"], logged["data"]) == ("store.record_removed", {"held": '{"half"'})


def test_an_unwritable_place_is_status_6(holdfast: CommandLine) -> None:
    ran = holdfast(
        "jobs", "pick", "--agent-session", "x", "--store", "sqlite:/proc/nowhere/store.sqlite"
    )
    assert ran.status == 6
    assert "--store" in ran.err


def test_a_mistyped_command_names_the_commands(holdfast: CommandLine) -> None:
    assert "Did you mean 'jobs'?" in holdfast("jbos").err
    assert "Did you mean 'list'?" in holdfast("jobs", "lst").err
    assert "Did you mean 'list'?" in holdfast("jobs", "ls").err
    assert "There are run, acquire, " in holdfast("locks", "list").err
    assert holdfast("locks", "list").status == 2


def test_backup_and_restore(holdfast: CommandLine, tmp_path: Path) -> None:
    kept = register(holdfast)
    saved = str(tmp_path / "saved.sqlite")
    assert json.loads(holdfast("store", "backup", saved, "--json").out) == {"backed_up_to": saved}
    again = holdfast("store", "backup", saved)
    assert (again.status, "exists" in again.err) == (2, True)
    nowhere = holdfast("store", "backup", str(tmp_path / "no" / "saved.sqlite"))
    assert (nowhere.status, f"no folder {tmp_path / 'no'}: make it" in nowhere.err) == (2, True)
    register(holdfast)
    first, where = holdfast("store", "restore", saved, "--yes").out.splitlines()
    assert (first, where.startswith("the store that it replaced is saved in ")) == (
        f"restored from {saved}",
        True,
    )
    answer = json.loads(holdfast("store", "restore", saved, "--yes", "--json").out)
    assert answer["restored_from"] == saved and Path(answer["saved"]).is_file()
    assert [line.split("\t")[0] for line in holdfast("jobs", "list").out.splitlines()] == [kept]


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_restore_asks_first_and_saves_what_it_replaces(tmp_path: Path, kind: str) -> None:
    """It replaced everybody's store without a word."""
    holdfast = CommandLine(tmp_path, HOLDFAST_STORE=f"{kind}:{tmp_path}/state")
    kept = register(holdfast)
    saved = str(tmp_path / "saved")
    assert holdfast("store", "backup", saved).status == 0
    later = register(holdfast)

    def jobs() -> set[str]:
        return {one["job_id"] for one in json.loads(holdfast("jobs", "list", "--json").out)}

    refused = holdfast("store", "restore", saved)
    assert (refused.status, "--yes" in refused.err) == (2, True)
    for typed in ("n\n", "\n", "\x04"):
        assert "nothing was changed" in holdfast.on_a_terminal(
            "store", "restore", saved, typed=typed
        )
    assert jobs() == {kept, later} and not list(tmp_path.rglob("*.replaced-*"))
    shown = holdfast.on_a_terminal("store", "restore", saved, typed="y\n", columns=400)
    assert f"{kind}:{tmp_path}/state" in shown and "Go on? [y/N]" in shown
    [replaced] = tmp_path.rglob("*.replaced-*")
    assert f"is saved in {replaced}" in shown
    assert jobs() == {kept}
    assert holdfast("store", "restore", str(replaced), "--yes").status == 0
    assert jobs() == {kept, later}


def test_a_restore_where_there_is_no_store_does_not_ask(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    kept = register(holdfast)
    assert holdfast("store", "backup", "saved").status == 0
    done = holdfast("store", "restore", "saved", "--json", "--store", "sqlite:new.sqlite")
    assert (done.status, json.loads(done.out)["saved"]) == (0, None)
    assert [
        one["job_id"]
        for one in json.loads(
            holdfast("jobs", "list", "--json", "--store", "sqlite:new.sqlite").out
        )
    ] == [kept]


SITUATIONS = [
    [],
    ["--json"],
    ["--wait", "0"],
    ["--wait", "0.01"],
    ["--wait", "-1"],
    ["--wait", "nan"],
    ["--wait", "soon"],
    ["--wait", "\u0663"],
    ["--pid", str(os.getpid()), "--json"],
    ["--pid", "0"],
    ["--pid", "\u0663"],
    ["--pid", "2147483647"],
    ["--pid", "9999999999"],
    ["--pid", "9" * 400],
    ["--namespace", "lab"],
    ["--namespace", "a/b"],
    ["--namespace", ""],
    ["--store", ""],
    ["--store", "nonsense"],
    ["--store", "sqlite:/proc/nowhere/store.sqlite"],
    ["--agent-session", "tmux:b"],
    ["--agent-session", "a\nb"],
    ["--nosuch"],
    ["--json", "extra"],
]


@pytest.mark.prove
@pytest.mark.parametrize(
    "words",
    SITUATIONS,
    ids=lambda words: ascii(" ".join(words)).replace(str(os.getpid()), "this")[:30],
)
def test_the_quick_parser_and_the_full_one_agree(tmp_path: Path, words: list[str]) -> None:
    """`jobs pick` is parsed twice; the full parser is forced by an option before the verb, which
    the quick one leaves.
    """
    outcomes = []
    for before in ([], ["--namespace", "default"]):
        holdfast = CommandLine(tmp_path, HOLDFAST_STORE=f"sqlite:{tmp_path}/{len(before)}.sqlite")
        register(holdfast, "--id", "the-job")
        ran = holdfast(*before, "jobs", "pick", "--agent-session", "tmux:a", *words)
        out = {**json.loads(ran.out), **VARYING} if "--json" in words and ran.out else ran.out
        left = {**json.loads(holdfast("jobs", "get", "--job", "the-job", "--json").out), **VARYING}
        outcomes.append((ran.status, out, ran.err, left))
    assert outcomes[0] == outcomes[1]
    assert "Traceback" not in outcomes[0][2]
    assert "a bug" not in outcomes[0][2]


VARYING = dict.fromkeys(["created_at", "updated_at", "started_at", "arrival", "token"])


def test_both_parsers_tell_the_version(holdfast: CommandLine) -> None:
    assert holdfast("--version") == holdfast("-v", "--version")


def test_a_number_beyond_all_counts_is_the_greatest(holdfast: CommandLine) -> None:
    job_id = holdfast("jobs", "register", "--prompt", "x", "--queue", "q").out.strip()
    most = "9" * 20
    assert job_id in holdfast("jobs", "list", "--limit", most).out
    assert holdfast("log", "--tail", most).out == holdfast("log").out != ""
    assert holdfast("log", "--subject", job_id, "--tail", most).out == holdfast("log").out


def test_the_process_that_picks_is_recorded_and_shown(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    pid = os.getpid()
    assert (
        holdfast("jobs", "pick", "--agent-session", "tmux:a", "--pid", str(pid)).out
        == f"{job_id}\n"
    )
    claimed_by = json.loads(holdfast("jobs", "get", "--job", job_id, "--json").out)["claimed_by"]
    assert (claimed_by["pid"], claimed_by["label"]) == (pid, "tmux:a")
    assert re.search(
        rf"^claimed_by +pid {pid} on \S+ \(tmux:a\)$",
        holdfast("jobs", "get", "--job", job_id).out,
        re.MULTILINE,
    )


def test_starting_a_job_by_hand_shows_its_token(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    ran = holdfast("jobs", "status", "--job", job_id, "--set", "running")
    token = json.loads(holdfast("jobs", "get", "--job", job_id, "--json").out)["token"]
    assert ran.out == f"{job_id} is running, token {token}\n"


def test_store_and_namespace_may_stand_before_or_behind(
    holdfast: CommandLine, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path}/other.sqlite"
    register(holdfast, "--store", url, "--namespace", "lab")
    assert holdfast("--store", url, "--namespace", "lab", "jobs", "list").out != ""
    assert holdfast("--store", url, "jobs", "list", "--namespace", "lab").out != ""
    assert holdfast("jobs", "list", "--store", url).out == ""
    assert holdfast("jobs", "list").out == ""


def test_the_nearest_file_configures(tmp_path: Path) -> None:
    holdfast = CommandLine(tmp_path)
    (tmp_path / "project" / "deep").mkdir(parents=True)
    (tmp_path / "project" / "holdfast.toml").write_text(
        'store = "sqlite:state/jobs.sqlite"\nnamespace = "lab"\n'
    )
    ran = holdfast(
        "jobs",
        "register",
        "--prompt",
        "x",
        "--agent-session",
        "s",
        cwd=tmp_path / "project" / "deep",
    )
    assert ran.status == 0, ran
    assert (tmp_path / "project" / "state" / "jobs.sqlite").exists()
    assert holdfast("jobs", "pick", "--agent-session", "s", cwd=tmp_path / "project").out == ran.out
    info = holdfast("store", "info", "--json", cwd=tmp_path / "project")
    assert json.loads(info.out)["namespace"] == "lab"


def test_an_unknown_setting_is_named(tmp_path: Path) -> None:
    holdfast = CommandLine(tmp_path)
    (tmp_path / "holdfast.toml").write_text('stroe = "sqlite:x"\n')
    ran = holdfast("jobs", "list")
    assert ran.status == 2
    assert "stroe" in ran.err
    assert "holdfast.toml" in ran.err
    (tmp_path / "holdfast.toml").write_text("store = [")
    assert holdfast("jobs", "list").status == 2


def test_without_settings_the_store_is_in_the_users_state_folder(tmp_path: Path) -> None:
    register(CommandLine(tmp_path))
    assert (tmp_path / ".local/state/holdfast/store.sqlite").exists()
    register(CommandLine(tmp_path, XDG_STATE_HOME=f"{tmp_path}/xdg"))
    assert (tmp_path / "xdg/holdfast/store.sqlite").exists()
    # The platform's convention: a relative one is to be ignored.
    register(CommandLine(tmp_path, XDG_STATE_HOME="relative"))
    assert not (tmp_path / "relative").exists()


def test_log_filters_follows_and_prunes(holdfast: CommandLine) -> None:
    ids = [register(holdfast) for _ in range(3)]
    assert holdfast("log", "-n", "1").out.count("\n") == 1
    assert ids[1] in holdfast("log", "--subject", ids[1]).out
    assert holdfast("log", "--since", "1h").out.count("\n") == 3
    assert ids[2] in holdfast("log", "--since", "1h", "-n", "1").out
    assert holdfast("log", "--since", "1h", "-n", "1").out.count("\n") == 1
    assert holdfast("log", "--since", "1h", "-n", "0").out.count("\n") == 3
    assert holdfast("log", "--since", "2099-01-01T00:00:00Z").out == ""
    following = holdfast.start("log", "--follow", "--json", "--tail", "1")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["subject"] == ids[2]
    late = register(holdfast)
    assert json.loads(following.stdout.readline())["subject"] == late
    following.send_signal(signal.SIGINT)
    _, complained = following.communicate(timeout=PATIENCE_S)
    assert (following.returncode, complained) == (130, "")
    assert holdfast("log", "--prune").out == "0 entries dropped\n"


def test_a_closed_pipe_is_no_error(holdfast: CommandLine) -> None:
    register(holdfast)
    following = holdfast.start("log", "--follow")
    assert following.stdout is not None
    following.stdout.readline()
    following.stdout.close()
    register(holdfast)
    assert following.wait(PATIENCE_S) == 0
    assert following.stderr is not None
    assert following.stderr.read() == ""
    following.stderr.close()


def test_every_command_has_help(holdfast: CommandLine) -> None:
    import click

    from holdfast.surfaces.cli.hints import AREAS
    from holdfast.surfaces.cli.root import holdfast as root

    context = click.Context(root)
    for area in AREAS:
        command = root.get_command(context, area)
        assert command is not None
        leaves = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        for leaf in leaves:
            assert leaf.help, leaf.name
            assert all(option.help for option in leaf.params if isinstance(option, click.Option)), (
                leaf.name
            )
    assert "Areas" in holdfast("--help").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["jobs", "status"],
            "missing option '--set'. Choose from: pending, running, completed, error, cancelled",
        ),
        (["locks", "acquire", "x"], "missing option '--by'"),
        (
            ["locks", "acquire", "x", "--ttl", "5 m"],
            "invalid value for '--ttl': '5 m' is not a number such as 30 or 0.5",
        ),
        (
            ["jobs", "watch", "x", "--timeout", "now"],
            "invalid value for '--timeout': 'now' is not a number such as 30 or 0.5",
        ),
        (
            ["jobs", "list", "--limit", "few"],
            "invalid value for '--limit': 'few' is not a whole number",
        ),
        (["jobs", "list", "a\x1b[2J"], "got unexpected extra argument (a\\x1b[2J)"),
        (["lokcs"], "no such command 'lokcs'. Did you mean 'locks'?"),
    ],
)
def test_a_command_that_was_not_understood_fails_in_one_line(
    holdfast: CommandLine, words: list[str], message: str
) -> None:
    ran = holdfast(*words)
    of = " ".join(["holdfast", *words[:2]] if len(words) > 1 else ["holdfast"])
    assert ran == (2, "", f"holdfast: {message} (see `{of} --help`)\n")


@pytest.mark.parametrize(
    "words",
    [
        ["agents", "run", "gpu", "claude", "--model", "x"],
        ["agents", "start", "gpu", "claude", "--model", "x"],
        ["gateway", "serve", "gpu", "--adapter", "command", "claude", "--model", "x"],
        ["jobs", "run", "--agent-session", "a", "claude", "--model", "x"],
        ["locks", "run", "a", "claude", "--model", "x"],
        ["swap", "to", "a", "claude", "--model", "x"],
        ["workflows", "run", "a", "--recipe", "b", "claude", "--model", "x"],
    ],
)
def test_a_command_without_the_dashes_before_it_names_them(
    holdfast: CommandLine, words: list[str]
) -> None:
    ran = holdfast(*words)
    assert (ran.status, ran.out) == (2, "")
    assert (
        "no such option '--model': if it is one of the command's own, put `--` before that "
        "command (see `" in ran.err
    )
    assert "`--`" not in holdfast("locks", "status", "--model").err


def test_an_impossible_time_is_named_in_plain_figures(holdfast: CommandLine) -> None:
    ran = holdfast("jobs", "register", "--prompt", "x", "--agent-session", "y", "--timeout", "-5")
    assert (ran.status, ran.out) == (2, "")
    assert "above 0 and up to 315360000" in ran.err


def test_a_group_alone_shows_its_commands(holdfast: CommandLine) -> None:
    ran = holdfast("jobs")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("Usage: holdfast jobs") and "register" in ran.err


@pytest.mark.parametrize(
    ("line", "next_words"),
    [
        (["tok"], ["token"]),
        (["locks", "acq"], ["acquire"]),
        (["--store", "memory:", "jobs", "reg"], ["register"]),
        (["jobs", "status", "--set", "c"], ["completed", "cancelled"]),
    ],
)
def test_a_shell_completes_areas_verbs_and_values(
    tmp_path: Path, line: list[str], next_words: list[str]
) -> None:
    asked = {
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["holdfast", *line]),
        "COMP_CWORD": str(len(line)),
    }
    ran = CommandLine(tmp_path, **asked)()
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines() == [f"plain,{word}" for word in next_words]


def test_bash_takes_the_script_that_completes(holdfast: CommandLine) -> None:
    ran = holdfast.shell(
        'eval "$(_HOLDFAST_COMPLETE=bash_source holdfast)" && complete -p holdfast'
    )
    assert (ran.status, ran.err) == (0, "")
    assert "_holdfast_completion holdfast" in ran.out


# --- options that take one value ---


def _single_valued(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every option of the command line that takes one value, with the words that lead to it."""
    context = click.Context(command)
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and not (
            parameter.multiple or parameter.count or parameter.is_flag
        ):
            yield path, parameter.opts[0]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _single_valued(below, (*path, name))


def test_an_option_that_takes_one_value_is_refused_when_it_is_given_twice(
    capfd: pytest.CaptureFixture[str],
) -> None:
    options = list(_single_valued(root.holdfast))
    assert len(options) > 200
    for path, option in options:
        status = root.run([*path, option, "1", option, "2"])
        output = capfd.readouterr()
        assert (status, output.out) == (2, ""), (path, option)
        assert "is given 2 times, and takes one value" in output.err, (path, option)


def test_two_labels_are_not_taken_for_the_last(holdfast: CommandLine) -> None:
    job_id = register(holdfast)
    for words in (["pick"], ["run", "--once"], ["list"]):
        end = ["--", "true"] if words[0] == "run" else []
        ran = holdfast(
            "jobs", *words, "--agent-session", "tmux:b", "--agent-session", "tmux:a", *end
        )
        assert (ran.status, ran.out) == (2, "")
        assert "--agent-session is given 2 times" in ran.err
    assert json.loads(holdfast("jobs", "get", job_id, "--json").out)["status"] == "pending"
    # What stands behind `--` is another command's, and where several values make sense they are
    # taken.
    ran = holdfast("locks", "run", "a", "--by", "me", "--", "echo", "--by", "x", "--by", "y")
    assert (ran.status, ran.out) == (0, "--by x --by y\n")
    assert (
        holdfast(
            "--store",
            f"sqlite:{holdfast.folder}/a",
            "jobs",
            "list",
            "--store",
            f"sqlite:{holdfast.folder}/b",
        ).status
        == 0
    )


# --- jobs that failed, and verdicts that came too late ---


def test_a_failed_job_is_retried_by_id_or_by_status(holdfast: CommandLine) -> None:
    failed, done, gone = (register(holdfast, "--id", name) for name in ("failed", "done", "gone"))
    for job_id, status in ((failed, "error"), (done, "completed")):
        assert holdfast("jobs", "pick", "--agent-session", "tmux:a").out == f"{job_id}\n"
        assert (
            holdfast(
                "jobs", "status", "--job", job_id, "--set", status, "--error", "no disk"
            ).status
            == 0
        )
    assert holdfast("jobs", "cancel", gone).status == 0
    ran = holdfast("jobs", "retry", done, failed, "nosuch", gone)
    assert (ran.status, ran.out) == (1, f"{failed} is pending\n{gone} is pending\n")
    assert f"job {done} is completed" in ran.err and "no job nosuch" in ran.err
    assert holdfast("jobs", "retry", failed).err.startswith(f"holdfast: job {failed} is pending")
    shown = json.loads(holdfast("jobs", "get", failed, "--json").out)
    assert (shown["status"], shown["error"], shown["attempt"]) == ("pending", None, 1)
    assert [(past["outcome"], past["error"]) for past in shown["past_attempts"]] == [
        ("error", "no disk")
    ]
    assert "1 error (no disk)" in holdfast("jobs", "get", failed).out
    assert "error -> pending (retried)" in holdfast("jobs", "logs", failed).out
    assert holdfast("jobs", "pick", "--agent-session", "tmux:a").out == f"{failed}\n"
    holdfast("jobs", "status", "--job", failed, "--set", "error", "--error", "again")
    assert holdfast("jobs", "retry", "--status", "error").out == f"{failed} is pending\n"
    assert holdfast("jobs", "retry", "--status", "error") == (0, "no job is error\n", "")
    for words in ([], [failed, "--status", "error"], [failed, "--agent-session", "x"]):
        assert holdfast("jobs", "retry", *words).status == 2


def test_a_verdict_that_comes_too_late_is_shown(holdfast: CommandLine) -> None:
    job_id = register(holdfast, "--timeout", "0.01")
    picked = json.loads(holdfast("jobs", "pick", "--agent-session", "tmux:a", "--json").out)
    ended = holdfast("jobs", "reap")
    assert ended.out.startswith(f"{job_id} is error")
    ran = holdfast(
        "jobs",
        "status",
        job_id,
        "--set",
        "completed",
        "--token",
        str(picked["token"]),
        "--result",
        "42 apples",
    )
    assert (ran.status, ran.out) == (4, "")
    assert "late_result" in ran.err
    assert (
        holdfast(
            "jobs", "status", job_id, "--set", "completed", "--token", "7", "--result", "mine"
        ).status
        == 4
    )
    shown = json.loads(holdfast("jobs", "get", job_id, "--json").out)
    assert (shown["status"], shown["error_code"], shown["result"]) == ("error", "timed_out", None)
    late = shown["late_result"]
    assert (late["status"], late["attempt"], late["result"]) == ("completed", 1, "42 apples")
    assert "42 apples" in holdfast("jobs", "get", job_id).out
    assert holdfast("jobs", "list").out.split("\t")[1] == "error, late: completed"
    assert "completed came too late, attempt 1" in holdfast("jobs", "logs", job_id).out
