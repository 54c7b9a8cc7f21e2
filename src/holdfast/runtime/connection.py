"""The one place where a store, a clock, adapters and domains are wired together."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from holdfast.kernel.clock import Clock
from holdfast.kernel.errors import Corrupt, HoldfastError
from holdfast.kernel.settings import Settings
from holdfast.kernel.store import Store
from holdfast.primitives.journal import Journal
from holdfast.processes.procfs import Procfs
from holdfast.processes.trees import Trees
from holdfast.runtime.configuration import actor_here, load_settings, store_url
from holdfast.runtime.paths import (
    access_in,
    gateway_agent,
    gateways_here,
    job_logs,
    placed,
    shown_in_files,
    signal_folder_of,
    tree_folder_of,
)
from holdfast.stores.factory import open_store
from holdfast.system.access import Access, access_for

if TYPE_CHECKING:
    from holdfast.adapters.gateway_client import GatewayClient
    from holdfast.adapters.job_log import JobLog
    from holdfast.domains.agents import Agents
    from holdfast.domains.jobs import Job, Jobs
    from holdfast.domains.jobs.event_stream import JobEvents
    from holdfast.domains.jobs.work import WorkReport, WorkRequest
    from holdfast.domains.network import Registry
    from holdfast.domains.workflows import Workflows
    from holdfast.primitives.holds import Holds
    from holdfast.primitives.locks import Locks


T = TypeVar("T")

_JOB_PARTS = ("jobs", "job_events")
"""The parts that change jobs, and so what the audit log follows."""


class _Part(Generic[T]):
    """A part that is made when it is first asked for. Of threads that ask at once each may make
    one, and all get the same: they cannot wait for each other, since a forked child would wait for
    a thread that it does not have.
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
        self._jobs_folder = jobs_folder

    def __enter__(self) -> "Holdfast":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @_Part
    def _access(self) -> Access:
        return access_in(self.settings, self.store)

    @_Part
    def log(self) -> Journal:
        """The journal."""
        return Journal(
            self.store, actor=self.settings.actor or actor_here(), keep=self.settings.journal
        )

    @_Part
    def jobs(self) -> "Jobs":
        """Delegated work."""
        from holdfast.domains.jobs import Jobs
        from holdfast.domains.jobs.records import FOLDER_LIMITS, NEW_JOB_LIMITS

        shared = self._jobs_folder is not None or (
            self.store.layout_folder("jobs") is not None and "jobs" in self.settings.files.folders
        )
        limits = FOLDER_LIMITS if shared else NEW_JOB_LIMITS
        return Jobs(
            self.store,
            self.log,
            self.processes,
            self.settings.jobs,
            limits=limits,
            worker=self._work,
        )

    def _work(self, request: "WorkRequest") -> "WorkReport":
        from holdfast.runtime.worker import work

        return work(self, request, self._jobs_folder)

    @_Part
    def job_events(self) -> "JobEvents":
        """What jobs tell of themselves."""
        from holdfast.domains.jobs.event_stream import JobEvents

        return JobEvents(self.store, self.log, self.processes)

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
        from holdfast.adapters.agent_files import GenerationFolders, ManifestFiles
        from holdfast.adapters.gateway_client import GatewayHealth
        from holdfast.adapters.tmux import Tmux
        from holdfast.domains.agents import Agents
        from holdfast.domains.agents.ports import Outside
        from holdfast.runtime.configuration import state_folder

        folders = GenerationFolders(lambda: state_folder(os.environ))
        outside = Outside(
            self.processes, Tmux(), ManifestFiles(self._access), folders, GatewayHealth()
        )
        return Agents(self.store, self.log, outside, self.settings.agents, debris=self.store)

    @_Part
    def locks(self) -> "Locks":
        """Locks on resources of any name."""
        from holdfast.primitives.locks import Locks

        label = self.settings.actor or ""
        return Locks(
            self.store,
            self.log,
            self.processes,
            self.settings.locks,
            label=label,
            behind=self._behind,
        )

    def _behind(self, by: str) -> tuple[str, ...]:
        from holdfast.runtime.attribution import behind

        return behind(self.jobs, self.agents, by)

    @_Part
    def holds(self) -> "Holds":
        """Counted holds on subjects of any name."""
        from holdfast.primitives.holds import Holds

        return Holds(self.store, self.log, self.processes, label=self.settings.actor or "")

    @_Part
    def network(self) -> "Registry":
        """Hosts, routers and neighbours of a network under test."""
        from holdfast.domains.network import Registry

        label = self.settings.actor or ""
        return Registry(
            self.store, self.log, self.processes, self.locks, self.settings.network, label=label
        )

    @_Part
    def workflows(self) -> "Workflows":
        """Workflows and model swaps."""
        from holdfast.runtime.configuration import workflow_here

        label, within = self.settings.actor or "", workflow_here(os.environ)
        own = self.store.side_folder("workflows")
        if (folder := self.store.layout_folder("workflows")) is not None and own is not None:
            from holdfast.adapters.signal_files import workflows_in_folder

            return workflows_in_folder(
                folder,
                own / self.store.namespace,
                self.store,
                self.log,
                self.processes,
                label=label,
                within=within,
                access=self._access,
            )
        from holdfast.adapters.signal_files import SignalFiles
        from holdfast.domains.workflows import Workflows

        return Workflows(
            self.store,
            self.log,
            self.processes,
            swap_lock=self.store.session_lock("swap"),
            signals=SignalFiles(signal_folder_of(self.store), self._access),
            label=label,
            within=within,
        )

    def gateway(
        self, agent: str, *, url: str | None = None, token: str | None = None
    ) -> "GatewayClient":
        """An agent's gateway: found by its folder on this machine, or at an address with its token.
        Raises InvalidName.
        """
        from holdfast.adapters.gateway_client import GatewayClient
        from holdfast.runtime.gateway_identity import gateway_place

        root = gateway_place(self.settings, agent, lambda: self._gateway_key(agent))
        return GatewayClient(agent, root=root, url=url, token=token)

    def _gateway_key(self, agent: str) -> str:
        from holdfast.runtime.gateway_identity import gateway_key

        with suppress(HoldfastError):
            return gateway_key(agent, self.agents.resolve(agent).record, self.settings, self.store)
        return gateway_agent(agent)

    def gateways(self) -> list[str]:
        """The agents that have, or had, a gateway on this machine. Raises StoreUnavailable when
        that cannot be read.
        """
        return gateways_here(self.settings)

    def check_token(self, resource: str, token: int) -> None:
        """Is this the token of a grant that is in force on the resource? Raises Fenced when it is
        not.
        """
        self.locks.check_token(resource, token)

    def catch_up(self, *, wait: bool = False) -> list[str]:
        """Bring the files that follow the journal up to date: the audit log of jobs. Return what
        went wrong, in words; it is logged and breaks nothing. If another process is writing them,
        it is left to that one, or waited for with `wait`.

        Closing a connection that changed jobs does this too. What is missing in the files because a
        process was killed, the next call adds, in any process.
        """
        return self._catch_up(wait=wait)

    def _catch_up(self, *, wait: bool = False, batches: int | None = None) -> list[str]:
        for name in _JOB_PARTS:
            if name in self.__dict__:
                self.__dict__[name].unlogged = False
        if self.job_log is None:
            return []
        trouble = self.job_log.catch_up(self.log, self._job, wait=wait, batches=batches)
        return [] if trouble is None else [trouble]

    def _job(self, job_id: str) -> "Job | None":
        with suppress(Corrupt):
            return self.jobs.peek(job_id)
        return None

    def close(self) -> None:
        """Release the store. Calling it again is harmless."""
        for name in _JOB_PARTS:
            if name in self.__dict__ and self.__dict__[name].unlogged:
                # One batch: a log that is far behind must not hold up this process.
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
    else a SQLite file in the user's state folder. A file or folder that is not there is made,
    unless `create` is False: then it is read as an empty store, and a change raises NotFound.
    `folders` says where a files store has the files of a domain, from its root on, as `{"jobs":
    "."}`. Raises InvalidValue for wrong settings, StoreUnavailable, StoreCorrupt or SchemaTooNew.
    """
    return connected(
        load_settings(store=store, namespace=namespace), clock=clock, create=create, folders=folders
    )


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
        url.text,
        namespace=settings.namespace,
        boot_id=processes.boot_id(),
        clock=clock,
        create=create,
        folders=folders,
        files=placed(settings.files),
        shown=shown_in_files,
        access=access_for(settings.group),
    )
    processes.watch_boots(opened.boot_in_use)
    processes.trees = Trees(partial(tree_folder_of, opened), partial(access_in, settings, opened))
    # Without `logging` nobody listens, and loading it costs a short command too much.
    if "logging" in sys.modules:
        log = sys.modules["logging"].getLogger("holdfast.runtime.connection")
        log.info("connected store=%s namespace=%s", opened.kind, opened.namespace)
    jobs_folder = url.path / folders["jobs"] if url.path and folders and "jobs" in folders else None
    return Holdfast(opened, settings, processes, jobs_folder=jobs_folder)
