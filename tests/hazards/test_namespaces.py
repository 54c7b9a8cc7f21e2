"""Containers with pids, a /proc or a clock since boot of their own: a live holder is never taken
for dead, and a killed one is found dead wherever that can be known.
"""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast import connect
from holdfast.kernel.codec import to_json
from holdfast.kernel.holder import Holder, Liveness, probe
from holdfast.processes.procfs import Procfs
from tests.harness.containers import HOST, Container, needs_containers

pytestmark = needs_containers

SHIFTED = Container(boot_shift_s=100_000)
OWN_PIDS = Container(own_pids=True)
PARENTS_PROC = Container(own_pids=True, own_proc=False)
PARENTS_PROC_SHIFTED = Container(own_pids=True, own_proc=False, boot_shift_s=100_000)
KINDS = {
    "host": HOST,
    "own clock since boot": SHIFTED,
    "own pids": OWN_PIDS,
    "own pids, the parent's /proc": PARENTS_PROC,
    "own pids and clock, the parent's /proc": PARENTS_PROC_SHIFTED,
}
kinds = pytest.mark.parametrize("container", KINDS.values(), ids=KINDS.keys())

_PROBE = """
import sys
from holdfast.processes.procfs import Procfs
import msgspec
from holdfast.kernel.holder import Holder, probe
print(probe(msgspec.json.decode(sys.argv[1], type=Holder), Procfs(), embedded=True).value)
"""

_SHOW_ITSELF = """
import sys
from holdfast.processes.procfs import Procfs
from holdfast.kernel.codec import to_json
print(to_json(Procfs().current()).decode(), flush=True)
sys.stdin.read()
"""

_FAMILY = """
import json, os, subprocess, sys
from holdfast.processes.procfs import Procfs
from holdfast.kernel.holder import probe
child = subprocess.Popen([sys.executable, "-S", "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
child.stdout.readline()
processes = Procfs()
holder, me = processes.of(child.pid), processes.current()
seen = [probe(holder, processes, embedded=True).value, probe(me, processes, embedded=True).value]
watched = processes.death(holder) is not None
child.kill()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
seen.append(probe(holder, processes, embedded=True).value)
child.wait()
seen.append(probe(holder, processes, embedded=True).value)
above = [one.pid for one in processes.ancestors()]
print(json.dumps({"seen": seen, "watched": watched, "pids": [holder.pid == child.pid, me.start_ticks <= holder.start_ticks],
                  "above": above}))
"""

_HOLD = """
import sys
from holdfast import connect
hf = connect(sys.argv[1])
grant = hf.locks.acquire("router-1", by="live")
print("held", flush=True)
sys.stdin.read()
"""

_TAKE = """
import sys
from holdfast import connect
with connect(sys.argv[1]) as hf:
    print("held" if hf.locks.try_acquire("router-1", by="taker") is None else "taken")
"""

_HOLD_AND_TAKE = """
import subprocess, sys
store, hold, take = sys.argv[1:]
holder = subprocess.Popen([sys.executable, "-c", hold, store], stdin=-1, stdout=-1)
print(holder.stdout.readline().decode().strip(), flush=True)
def taker(): return subprocess.run([sys.executable, "-c", take, store], stdout=-1, check=True).stdout.decode().strip()
input()
print(taker(), flush=True)
holder.kill()
holder.wait()
print("killed", flush=True)
input()
print(taker(), flush=True)
"""


@pytest.mark.parametrize(
    "prober", [HOST, SHIFTED], ids=["from the host", "from a clock of its own"]
)
@pytest.mark.parametrize(
    "holder", [HOST, SHIFTED, Container(boot_shift_s=7)], ids=["host", "shifted", "shifted by less"]
)
def test_the_clock_since_boot_of_a_container_changes_no_verdict(
    holder: Container, prober: Container
) -> None:
    """The kernel shows start times in the reader's own clock since boot: a live holder had another
    one, and was dead.
    """
    started = holder.start(_SHOW_ITSELF)
    with started:
        assert started.stdout is not None
        said = started.stdout.readline()
        assert prober.run(_PROBE, said) == "alive"
        started.communicate()
    assert prober.run(_PROBE, said) == "dead"


@kinds
def test_a_process_beside_is_alive_until_it_is_killed(container: Container) -> None:
    """With its parent's /proc, a container looked at the host's process of the same number: a
    killed holder stayed alive.
    """
    found = json.loads(container.run(_FAMILY))
    assert found["seen"] == ["alive", "alive", "dead", "dead"]
    assert found["watched"]
    assert found["pids"] == [True, True]
    if container.own_pids and not container.own_proc:
        # The numbers of the processes above are those of the host, and mean others here.
        assert found["above"] == []


@pytest.mark.parametrize(
    "container", [OWN_PIDS, PARENTS_PROC], ids=["own pids", "own pids, the parent's /proc"]
)
def test_a_process_of_another_pid_namespace_is_unknown(container: Container) -> None:
    here = Procfs()
    assert container.run(_PROBE, to_json(here.current()).decode()) == "unknown"
    with container.start(_SHOW_ITSELF) as started:
        assert started.stdout is not None
        inside = msgspec.json.decode(started.stdout.readline(), type=Holder)
        assert inside.pid == 1
        assert probe(inside, here, embedded=True) is Liveness.UNKNOWN
        # It says its own start, and not that of the host's first process.
        assert inside.start_ticks > here.of(1).start_ticks
        started.communicate()


@kinds
def test_a_lock_passes_on_when_its_holder_is_killed_and_not_before(
    container: Container, tmp_path: Path
) -> None:
    store = f"sqlite:{tmp_path / 'store.sqlite'}"
    connect(store).close()
    with container.start(_HOLD_AND_TAKE, store, _HOLD, _TAKE) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        assert inside.stdout.readline() == "held\n"
        assert _taken_by_the_host(store) == "held"
        print(file=inside.stdin, flush=True)
        assert inside.stdout.readline() == "held\n"
        assert inside.stdout.readline() == "killed\n"
        if container.own_pids:
            # The host cannot see a process of that namespace: the lease decides.
            assert _taken_by_the_host(store) == "held"
        print(file=inside.stdin, flush=True)
        assert inside.stdout.readline() == "taken\n"
        inside.communicate()


def _taken_by_the_host(store: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", _TAKE, store], stdout=-1, check=True, text=True
    ).stdout.strip()
