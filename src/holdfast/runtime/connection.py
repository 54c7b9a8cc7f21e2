"""`connect()`: the one place where a store, a clock, adapters and domains are wired together."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import (
    BrokerUnavailable,
    Corrupt,
    InvalidName,
    InvalidValue,
)
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.processes.procfs import Procfs
from holdfast.runtime.configuration import (
    access_in,
    actor_here,
    gateways_here,
    job_logs,
    load_settings,
    placed,
    shown_in_files,
    signal_folder_of,
    store_url,
    tree_folder_of,
)
from holdfast.stores.url import open_store
from holdfast.system.access import Access, access_for

if TYPE_CHECKING:
    from holdfast.adapters.gateway_client import GatewayClient
    from holdfast.adapters.job_log import JobLog
    from holdfast.adapters.journal_mirror import JournalMirror
    from holdfast.domains.agents import Agents
    from holdfast.domains.agents.ports import AgentPorts
    from holdfast.domains.jobs import Jobs
    from holdfast.domains.jobs.event_stream import JobEvents
    from holdfast.domains.jobs.events import Event
    from holdfast.domains.jobs.work import WorkReport, WorkRequest
    from holdfast.domains.network import Registry
    from holdfast.domains.workflows import Workflows
    from holdfast.primitives.holds import Holds
    from holdfast.primitives.locks import Locks


T = TypeVar("T")

_JOB_PARTS = ("jobs", "job_events")
"""The parts that change jobs, and so what the audit log follows."""


class _Part(Generic[T]):
    """A part that is made when it is first used. Threads that use it at once may each make one, and
    all get the same one. They do not wait for each other: a forked child would wait for a thread
    that it does not have.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, whole: None, _: type) -> "_Part[T]": ...

    @overload
    def __get__(self, whole: object, _: type) -> T: ...

    def __get__(self, whole: object | None, _: type) -> "T | _Part[T]":
        return self if whole is None else whole.__dict__.setdefault(self._name, self._make(whole))


class Holdfast:
    """A connection: the domains on one store. Thread-safe, safe after fork, and a context manager
    that closes it.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        processes: Procfs,
        *,
        jobs_folder: Path | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.processes = processes
        self._label = settings.actor or ""
        self._jobs_folder = jobs_folder
        self._mirrors: list[JournalMirror] = []

    def __enter__(self) -> "Holdfast":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @_Part
    def _access(self) -> Access:
        return access_in(self.settings, self.store)

    @property
    def _base(self) -> tuple[Store, Journal, Procfs]:
        """What every part is built on."""
        return self.store, self.log, self.processes

    @_Part
    def log(self) -> Journal:
        """The journal."""
        return Journal(self.store, actor=self._label or actor_here(), keep=self.settings.journal)

    @_Part
    def jobs(self) -> "Jobs":
        """Delegated work."""
        from holdfast.domains.jobs import Jobs
        from holdfast.domains.jobs.records import FOLDER_LIMITS, NEW_JOB_LIMITS

        shared = self._jobs_folder is not None or (
            self.store.layout_folder("jobs") is not None and "jobs" in self.settings.files.folders
        )
        limits = FOLDER_LIMITS if shared else NEW_JOB_LIMITS
        jobs = self.settings.jobs
        return Jobs(*self._base, jobs, limits=limits, worker=self._work)

    def _work(self, request: "WorkRequest") -> "WorkReport":
        from holdfast.runtime.worker import work

        return work(self, request, self._jobs_folder)

    @_Part
    def job_events(self) -> "JobEvents":
        """The events that jobs send while they run."""
        from holdfast.domains.jobs.event_stream import JobEvents

        return JobEvents(*self._base)

    @_Part
    def job_log(self) -> "JobLog | None":
        """The audit log of jobs; None for a store that keeps nothing."""
        folder = job_logs(self.settings, self.store, self._jobs_folder)
        if folder is None:
            return None
        from holdfast.adapters.job_log import JobLog

        return JobLog(
            folder,
            store=f"{self.settings.store} {self.store.namespace}",
            beside=self._jobs_folder,
            access=self._access,
        )

    @_Part
    def agents(self) -> "Agents":
        """Live agents."""
        from holdfast.domains.agents import Agents

        agents = self.settings.agents
        return Agents(self.store, self.log, self._agent_ports, agents, debris=self.store)

    def _agent_ports(self) -> "AgentPorts":
        from holdfast.adapters.agent_files import GenerationFolders, ManifestFiles
        from holdfast.adapters.agent_runs import AgentRunFiles
        from holdfast.adapters.gateway_health import GatewayHealth
        from holdfast.adapters.tmux import Tmux
        from holdfast.domains.agents.ports import AgentPorts
        from holdfast.runtime.configuration import agent_runs_folder, state_folder

        runs = AgentRunFiles(lambda: agent_runs_folder(self.settings))
        return AgentPorts(
            self.processes,
            Tmux(),
            ManifestFiles(self._access),
            GenerationFolders(lambda: state_folder(os.environ), runs),
            GatewayHealth(),
            runs=None if self.store.ephemeral else runs,
        )

    @_Part
    def locks(self) -> "Locks":
        """Locks on resources of any name."""
        from holdfast.primitives.locks import Locks

        locks = self.settings.locks
        return Locks(*self._base, locks, label=self._label, behind=self._behind)

    def _behind(self, by: str) -> tuple[str, ...]:
        """Who works on the job that holds a lock: `worker tmux:claude-a`, `agent gpu`. Empty for a
        job that is not registered here.

        Only reads: a job whose worker is dead may not be requeued yet. Damaged records are left
        out.
        """
        from holdfast.domains.agents.records import bare
        from holdfast.domains.jobs import JobStatus
        from holdfast.primitives.locks.records import root_of

        job = None
        # The holder of a lock may have any name, also one that no job can have.
        with suppress(InvalidName, Corrupt):
            job = self.jobs.peek(root_of(by))
        if job is None:
            return ()
        if job.status is not JobStatus.RUNNING:
            return (f"no worker, as the job is {job.status.value}",)
        label = job.agent_session
        session = label.removeprefix("tmux:")
        agents = self.agents.in_tmux_session(session) if session != label else []
        return (f"worker {label}", *(f"agent {bare(agent.agent_name)}" for agent in agents))

    @_Part
    def holds(self) -> "Holds":
        """Counted holds on subjects of any name."""
        from holdfast.primitives.holds import Holds

        return Holds(*self._base, label=self._label)

    @_Part
    def network(self) -> "Registry":
        """Hosts, routers and neighbours of a network under test."""
        from holdfast.domains.network import Registry

        return Registry(*self._base, self.locks, self.settings.network, label=self._label)

    @_Part
    def workflows(self) -> "Workflows":
        """Workflows and model swaps."""
        from holdfast.adapters.signal_files import SignalFiles, workflows_in_folder
        from holdfast.domains.workflows import Workflows
        from holdfast.runtime.configuration import workflow_here

        within = workflow_here(os.environ)
        own = self.store.side_folder("workflows")
        if (folder := self.store.layout_folder("workflows")) is not None and own is not None:
            from holdfast.adapters.journal_mirror import swap_log_file
            from holdfast.domains.workflows.wire import SWAP_LOG

            own /= self.store.namespace
            swap_log = swap_log_file(folder / SWAP_LOG, own, self.log, self._access)
            self._mirrors.append(swap_log)
            return workflows_in_folder(
                folder,
                own,
                *self._base,
                mirror=swap_log,
                label=self._label,
                within=within,
                access=self._access,
            )
        return Workflows(
            *self._base,
            swap_lock=self.store.session_lock("swap"),
            signals=SignalFiles(signal_folder_of(self.store), self._access),
            label=self._label,
            within=within,
        )

    def gateway(
        self, agent: str, *, url: str | None = None, token: str | None = None
    ) -> "GatewayClient":
        """An agent's gateway: found by its folder on this machine, or at an address with its token.
        Raises InvalidName.
        """
        from holdfast.runtime.gateway_identity import gateway_client

        return gateway_client(agent, self.settings, lambda: nullcontext(self), url=url, token=token)

    def gateways(self) -> list[str]:
        """The agents that have, or had, a gateway on this machine. Raises StoreUnavailable when
        their folder cannot be read.
        """
        return gateways_here(self.settings)

    def check_token(self, resource: str, token: int) -> None:
        """Raise Fenced unless this is the token of a grant in force on the resource."""
        self.locks.check_token(resource, token)

    def catch_up(self, *, wait: bool = False) -> list[str]:
        """Bring the files that follow the journal up to date: the audit log of jobs, and the swap
        log and transaction log of this connection, which each change brings up to date too. Return
        what went wrong with the audit log, in words; every failure is logged and breaks nothing. If
        another process is writing them, that process goes on alone; with `wait`, this one waits for
        it.

        Closing a connection that changed jobs does this too. The next call, in any process, adds
        what is missing because a process was killed.
        """
        for mirror in self._mirrors:
            mirror.catch_up()
        return self._catch_up(wait=wait)

    def _catch_up(self, *, wait: bool = False, batches: int | None = None) -> list[str]:
        for name in _JOB_PARTS:
            if name in self.__dict__:
                self.__dict__[name].unlogged = False
        if self.job_log is None:
            return []
        trouble = self.job_log.catch_up(self.log, self.jobs.peek, wait=wait, batches=batches)
        return [] if trouble is None else [trouble]

    def send_events(self, event: "Event | None" = None) -> int:
        """Send the stored events of an event's job, or of all jobs; return how many were sent.

        Raises BrokerUnavailable, and InvalidValue for a topic that nothing can be sent to. What is
        not sent stays stored.
        """
        from holdfast.adapters.event_sender import EventSender

        unsent = ""
        if event is not None:
            unsent = f"event {event.seq} of job {event.job_id} is kept and not sent yet: "
        sender = EventSender(self.job_events)
        try:
            return sender.send(None if event is None else [event.job_id])
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"{unsent}{error.message}. `holdfast jobs publish --unsent` sends what is kept",
                **error.fields,
            ) from None
        except InvalidValue as error:
            raise InvalidValue(f"{unsent}{error.message}", **error.fields) from None
        finally:
            sender.close()

    def close(self) -> None:
        """Close the store. Calling it again is harmless."""
        for name in _JOB_PARTS:
            if name in self.__dict__ and self.__dict__[name].unlogged:
                # One batch: a log that is far behind must not delay this process.
                self._catch_up(batches=1)
                break
        for part in ("network", "locks", "holds"):
            if part in self.__dict__:
                self.__dict__[part].close()
        self.store.close()


def connect(
    store: str | None = None,
    *,
    namespace: str | None = None,
    clock: Clock | None = None,
    create: bool = True,
    folders: Mapping[str, str] | None = None,
) -> Holdfast:
    """Connect to a store: `sqlite:PATH`, `files:DIR`, `postgresql://...` or `memory:`.

    Without one: HOLDFAST_STORE, else the nearest holdfast.toml upwards from the working folder,
    else a SQLite file in the user's state folder. A missing file or folder is made, unless `create`
    is False: then it is read as an empty store, and a change raises NotFound. `folders` says where
    a files store has the files of a domain, relative to its root, as `{"jobs": "."}`. Raises
    InvalidValue for wrong settings, StoreUnavailable, StoreCorrupt or SchemaTooNew.
    """
    settings = load_settings(store=store, namespace=namespace)
    return connected(settings, clock=clock, create=create, folders=folders)


def connected(
    settings: Settings,
    *,
    clock: Clock | None = None,
    create: bool = True,
    folders: Mapping[str, str] | None = None,
) -> Holdfast:
    """Connect by settings that are put together already; see `connect`."""
    processes = Procfs(host_id=settings.host_id)
    url = store_url(settings)
    opened = open_store(
        url,
        namespace=settings.namespace,
        boot_id=processes.boot_id(),
        clock=clock,
        create=create,
        folders=folders,
        files=partial(placed, settings.files),
        shown=shown_in_files,
        access=access_for(settings.group),
    )
    processes.watch_boots(opened.boot_in_use)
    processes.find_trees(partial(tree_folder_of, opened), partial(access_in, settings, opened))
    # A program that has not loaded `logging` listens to no log, and loading it would cost a short
    # command several milliseconds.
    if (logging := sys.modules.get("logging")) is not None:
        log = logging.getLogger("holdfast.runtime.connection")
        log.info("connected store=%s namespace=%s", opened.kind, opened.namespace)
    jobs_folder = url.path / folders["jobs"] if url.path and folders and "jobs" in folders else None
    return Holdfast(opened, settings, processes, jobs_folder=jobs_folder)
