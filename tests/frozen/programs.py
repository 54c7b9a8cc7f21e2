"""Commands that run other programs or serve: their outcome, and what they leave beside a store."""

import signal
from pathlib import Path

from tests.frozen import inside, layout
from tests.frozen.shape import indented, shape_of_text

_PATIENCE_S = 60.0
_NO_BROKER = {"MQTT_BROKER": "127.0.0.1", "MQTT_PORT": "1"}
"""Events stay unsent, also on a machine that runs a broker."""
_RUNS = (
    "jobs register --prompt hello --agent-session q --id works --json",
    "jobs run --agent-session q --once -- true",
    "jobs register --prompt hello --agent-session q --id fails --json",
    "jobs run --agent-session q --once -- false",
    "jobs run --agent-session q --once -- true",
    "jobs watch works fails --json",
    "locks run router -- sh -c 'exit 9'",
    "locks run router -- /nosuch/program",
    "locks run router -- sh -c 'kill -TERM $$'",
    "store copy {store} sqlite:{folder}/copy/copy.sqlite --json",
    "agents run gpu --json -- sh -c 'exit 8'",
    "agents start dsp --watch 0.1 --json -- sleep 600",
    "agents start dsp --watch 0.1 --json -- sleep 600",
    "agents start brief --json -- sh -c 'exit 7'",
    "swap to llama -- true",
    "swap to qwen -- sh -c 'exit 6'",
    "swap to llama -- true",
    "workflows run nightly --recipe llama --preemptible -- sh -c 'exit 5'",
    "workflows run nightly --recipe qwen -- true",
    "workflows register tuning --recipe llama --ttl 600 --preemptible --pid 1 --json",
    "swap to qwen --policy refuse --grace 0.1 -- true",
    "network routers lock router --by run --ttl 600 --json",
)
_SERVERS = (
    "serve --no-gateways --port 0 --json",
    "gateway serve gpu --adapter command -- cat",
)


def play(kind: str, folder: Path) -> dict[str, str]:
    """Run the commands in order, and return what they printed and the files they left."""
    store = {"sqlite": f"sqlite:{folder}/store.sqlite", "files": f"files:{folder}/store"}[kind]
    with inside.tmux_server() as tmux:
        environment = {"HOLDFAST_STORE": store, "HOLDFAST_ACTOR": "tester", **_NO_BROKER}
        say = inside.CommandLine(folder, **environment, **tmux.environment)
        (folder / "copy").mkdir()
        blocks: list[str] = []
        for words in _RUNS:
            ran = say.shell(f"holdfast {words.format(store=store, folder=folder)}")
            lines = [f"$ holdfast {words}", f"exit {ran.status}"]
            blocks.append("\n".join([*lines, *indented(shape_of_text(ran.out) if ran.out else [])]))
        served = [say.start(*words.split()) for words in _SERVERS]
        try:
            for words, process in zip(_SERVERS, served, strict=True):
                assert process.stdout is not None
                blocks.append(
                    "\n".join(
                        [f"$ holdfast {words}", *indented(shape_of_text(process.stdout.readline()))]
                    )
                )
            say("gateway", "prompt", "gpu", "hello", "--wait", "20")
            files = layout.tree(folder, leave_out=("copy",))
        finally:
            for process in served:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=_PATIENCE_S)
        statuses = [
            f"$ holdfast {words}\nexit {one.returncode} after SIGTERM"
            for words, one in zip(_SERVERS, served, strict=True)
        ]
    return {
        f"programs.{kind}.txt": "\n\n".join([*blocks, *statuses]) + "\n",
        f"layout.beside.{kind}.txt": files,
    }
