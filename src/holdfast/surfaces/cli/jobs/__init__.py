"""`holdfast jobs`: delegated work.

options.py     what several commands ask for, and keeping the audit log up to date
registering.py `register`
deciding.py    `pick`, `status`, `cancel`, `requeue`, `retry`, `heartbeat`, `reap`, `prune`
showing.py     `list`, `get`, `logs`
publishing.py  `publish`
watching.py    `watch`, with watch.py for what it does
running.py     `run`, with worker.py (one job after the other) and labour.py (one attempt)
"""

import click

from holdfast.surfaces.cli.group import InOrder
from holdfast.surfaces.cli.jobs.deciding import (
    cancel,
    heartbeat,
    pick,
    prune,
    reap,
    requeue,
    retry,
    status,
)
from holdfast.surfaces.cli.jobs.publishing import publish
from holdfast.surfaces.cli.jobs.registering import register
from holdfast.surfaces.cli.jobs.running import run
from holdfast.surfaces.cli.jobs.showing import get, list_, logs
from holdfast.surfaces.cli.jobs.watching import watch


@click.group(cls=InOrder)
def jobs() -> None:
    """Delegated work: each job is picked by one worker at a time.

    \b
        holdfast jobs register --prompt 'say hello' --agent-session tmux:me
        holdfast jobs run --agent-session tmux:me -- ./agent.sh
        holdfast jobs watch JOB
    """


for _command in (
    *(register, list_, get, pick, status, cancel, requeue, retry, heartbeat),
    *(run, publish, watch, logs, reap, prune),
):
    jobs.add_command(_command)
