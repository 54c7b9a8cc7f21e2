"""The surroundings of the parity table: a folder, a gateway, the state of each row."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.adapters.gateway_folder import CurrentInstance, GatewayFolder
from holdfast.runtime.configuration import gateway_root
from holdfast.runtime.connection import Holdfast
from tests.harness.tmux_server import tmux_server
from tests.surfaces import gateway_http
from tests.surfaces.agent_bench import ended
from tests.surfaces.parity import Case, Facts
from tests.surfaces.parity_cases import GATEWAYS


@contextmanager
def surroundings(folder: Path) -> Iterator[None]:
    """Run the block in `folder`, with a tmux server and state folders that no other program uses."""
    with pytest.MonkeyPatch.context() as patch, tmux_server() as tmux:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("HOLDFAST_GATEWAY_ROOT", str(folder / "gateways"))
        patch.setenv("HOLDFAST_ACTOR", "tester")
        patch.delenv("MQTT_BROKER", raising=False)
        for name, value in tmux.environment.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        yield
        # Agents that were started there remove what is theirs when they end.
        panes = tmux("list-panes", "-a", "-F", "#{pane_pid}", check=False).split()
        tmux("kill-server", check=False)
        for pid in map(int, panes):
            ended(pid)


@contextmanager
def gateway_beside(hf: Holdfast) -> Iterator[None]:
    """Serve a gateway for the agent gpu in the namespace of this connection."""
    folder = GatewayFolder(gateway_root(hf.settings, "gpu"))
    folder.prepare()
    with gateway_http.served(folder.root, work=False) as gate:
        folder.token.write_text(gateway_http.TOKEN)
        folder.write_instance(
            CurrentInstance(
                pid=os.getpid(), host="127.0.0.1", port=gate.port, managed_agent_instance_epoch=1
            )
        )
        GATEWAYS[hf.store.namespace] = gate
        yield


def facts_for(case: Case, hf: Holdfast, number: int) -> Facts:
    """Bring about the state that a row starts from, and return the values that its templates use."""
    return {"n": str(number), "hex": f"{number:02x}", **(case.given(hf, str(number)) or {})}
