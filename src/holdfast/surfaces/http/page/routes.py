"""The routes of the page. Everything here reads; the buttons of the page call the operations."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from litestar import Request, Response, get
from litestar.params import FromPath, PathParameter, QueryParameter

from holdfast.domains.gateway import GatewayStatus
from holdfast.domains.jobs import JobStatus
from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import HoldfastError, InvalidValue, NotFound, Unavailable
from holdfast.kernel.limits import (
    LABEL_CHARS_MAX,
    LIST_MAX,
    PAGE_CENSUS_S,
    PAGE_GATEWAY_S,
    PAGE_GATEWAYS_MAX,
    PAGE_JOURNAL_MAX,
    PAGE_LINES,
)
from holdfast.kernel.store import Entry
from holdfast.operations import gateways as operations
from holdfast.operations.gateways import GatewayKey, ListRequests, RequestView
from holdfast.operations.page.agents import (
    AgentPage,
    agent_census,
    agent_names,
    agent_page,
    name_of,
    why_agent,
)
from holdfast.operations.page.explanation import Why
from holdfast.operations.page.gateways import (
    GatewayDetails,
    GatewayLine,
    gateway_details,
    gateway_line,
)
from holdfast.operations.page.jobs import JobDetails, JobPage, job_details, job_page
from holdfast.operations.page.locks import LockPage, lock_page, why_lock
from holdfast.operations.page.overview import Overview, overview
from holdfast.operations.page.questions import asked
from holdfast.operations.page.timeline import Timeline, timeline
from holdfast.operations.page.workflows import why_swap, why_workflow
from holdfast.operations.questions import of_gateway
from holdfast.primitives.journal import redacted
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.http.page.assets import Asset, headers_of, load_assets
from holdfast.surfaces.http.problems import takes

_Limit = Annotated[int, QueryParameter(ge=1, le=LIST_MAX)]
_Name = Annotated[str, QueryParameter(max_length=LABEL_CHARS_MAX)]
_PathName = Annotated[str, PathParameter(max_length=LABEL_CHARS_MAX)]
_REQUESTS = 100
_LOG_LINES = 200
_FRESH_S = 0.5
_JOBS_KEPT_A_SECOND = 1_000_000
"""A count of so many jobs is used for a second."""

T = TypeVar("T")


class JournalPage(Plain, frozen=True, kw_only=True):
    """The newest entries, the newest first."""

    entries: tuple[Entry, ...]
    names: dict[str, str]
    """The names of agents whose ids are in those entries."""


class ShownJob(Plain, frozen=True, kw_only=True):
    """A job, and the last lines of its log."""

    job: JobDetails
    log: list[dict[str, Any]]


class Counted(Generic[T]):
    """A count that reads all there is. `kept_s` says how long one is used again, by the count and
    the seconds that it took.
    """

    def __init__(self, count: Callable[[], T], kept_s: Callable[[T, float], float]) -> None:
        self._count = count
        self._kept_s = kept_s
        self._mutex = threading.Lock()
        self._last: tuple[T] | None = None
        self._until_s = 0.0

    def get(self) -> T:
        """The count, old or new."""
        with self._mutex:
            if self._last is None or time.monotonic() > self._until_s:
                began_s = time.monotonic()
                self._last = (self._count(),)
                now_s = time.monotonic()
                self._until_s = now_s + self._kept_s(self._last[0], now_s - began_s)
            return self._last[0]


class GatewayStatuses:
    """The states of this machine's gateways. One that hangs delays nobody twice."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._mutex = threading.Lock()
        self._asked: dict[str, tuple[float, Future[GatewayStatus | None]]] = {}

    def lines(self) -> list[GatewayLine]:
        """A line for each, by the agent's name."""
        names = self._hf.gateways()[:PAGE_GATEWAYS_MAX]
        new = [self._ask(name) for name in names]
        wait([future for future, started in new if started], timeout=PAGE_GATEWAY_S)
        return [self._line(name, future) for name, (future, _) in zip(names, new, strict=True)]

    def one(self, agent: str) -> tuple[GatewayLine, GatewayStatus | None]:
        """The line of one gateway, and its status.

        Raises NotFound when this machine has no gateway of that agent.
        """
        if agent not in self._hf.gateways():
            raise NotFound(
                f"no gateway of {agent} was ever started here: `holdfast gateway serve {agent}` "
                "starts one",
                agent=agent,
            )
        future, started = self._ask(agent)
        if started:
            wait([future], timeout=PAGE_GATEWAY_S)
        return self._line(agent, future), future.result() if future.done() else None

    def _line(self, agent: str, future: "Future[GatewayStatus | None]") -> GatewayLine:
        name = name_of(self._hf.agents, agent)
        if future.done():
            return gateway_line(agent, future.result(), name=name)
        return gateway_line(agent, None, silent=True, name=name)

    def _ask(self, agent: str) -> "tuple[Future[GatewayStatus | None], bool]":
        """Its response, and whether it was asked just now: never again before it has answered."""
        with self._mutex:
            at_s, future = self._asked.get(agent, (0.0, None))
            if future is not None and (not future.done() or time.monotonic() - at_s < _FRESH_S):
                return future, False
            future = Future()
            self._asked[agent] = (time.monotonic(), future)
        threading.Thread(
            target=self._answer, args=(agent, future), name="holdfast-page", daemon=True
        ).start()
        return future, True

    def _answer(self, agent: str, future: "Future[GatewayStatus | None]") -> None:
        try:
            future.set_result(operations.status(self._hf, GatewayKey(agent=agent)))
        except HoldfastError:
            # There never was one, or its response makes no sense: it is shown as never served.
            future.set_result(None)
        except BaseException:
            future.set_result(None)
            raise


def page_routes(hf: Holdfast) -> list[Any]:
    """The routes of the page."""
    gateways = GatewayStatuses(hf)
    # A million jobs are counted in 50 ms. The count of a few is always new.
    jobs = Counted(hf.jobs.counts, lambda counts, _: sum(counts.values()) / _JOBS_KEPT_A_SECOND)
    return [
        *_files(),
        *_overviews(hf, gateways, jobs),
        *_lists(hf, jobs),
        *_answers(hf, gateways),
    ]


def _read(path: str, *queried: str) -> Callable[[Callable[..., Any]], Any]:
    """A route that reads the store in a thread. It is the page's own, and not in the OpenAPI."""
    return get(path, sync_to_thread=True, include_in_schema=False, opt=takes(*queried))


def _files() -> list[Any]:
    assets = load_assets()
    headers = headers_of(assets)

    def sent(asset: Asset, request: Request[Any, Any, Any]) -> Response[bytes]:
        same = request.headers.get("if-none-match") == asset.etag
        return Response(
            b"" if same else asset.content,
            status_code=304 if same else 200,
            media_type=asset.media_type,
            headers={**headers, "ETag": asset.etag},
        )

    @get("/", include_in_schema=False, sync_to_thread=False)
    def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        return sent(assets["page.html"], request)

    @get("/assets/{name:str}", include_in_schema=False, sync_to_thread=False)
    def asset(name: FromPath[str], request: Request[Any, Any, Any]) -> Response[bytes]:
        if name not in assets:
            raise NotFound("the page has no such file", name=name[:100])
        return sent(assets[name], request)

    return [page, asset]


def _overviews(
    hf: Holdfast, gateways: GatewayStatuses, job_counts: Counted[dict[JobStatus, int]]
) -> list[Any]:
    # A count that took long is kept for longer: counting must not fill the server.
    agents = Counted(partial(agent_census, hf), lambda _, took_s: PAGE_CENSUS_S + 5 * took_s)

    @_read("/v1/overview")
    def at_a_glance() -> Overview:
        return overview(hf, agents.get(), gateways.lines(), job_counts.get())

    @_read("/v1/timeline")
    def holds() -> Timeline:
        return timeline(hf.store, hf.locks)

    return [at_a_glance, holds]


def _lists(hf: Holdfast, job_counts: Counted[dict[JobStatus, int]]) -> list[Any]:
    @_read("/v1/overview/agents", "after_name", "after_id", "limit", "words")
    def agents(
        after_name: _Name = "", after_id: _Name = "", limit: _Limit = PAGE_LINES, words: _Name = ""
    ) -> AgentPage:
        """Agents by name, behind one of them."""
        after = (after_name, after_id) if after_name else None
        return agent_page(hf, after=after, limit=limit, words=words)

    @_read("/v1/overview/locks", "after", "limit", "words")
    def locks(after: _Name = "", limit: _Limit = PAGE_LINES, words: _Name = "") -> LockPage:
        """What is held or waited for, by name, behind one of them."""
        return lock_page(hf.locks, after=after, limit=limit, words=words)

    @_read("/v1/overview/jobs", "status", "before_arrival", "before_id", "limit", "words")
    def jobs(
        wanted: Annotated[str, QueryParameter(name="status", max_length=20)] = "",
        before_arrival: Annotated[int, QueryParameter(ge=0)] = 0,
        before_id: _Name = "",
        limit: _Limit = PAGE_LINES,
        words: _Name = "",
    ) -> JobPage:
        """Jobs, the newest first, before one of them."""
        before = (before_arrival, before_id) if before_id else None
        return job_page(
            hf,
            job_counts.get(),
            status=wanted or None,
            before=before,
            limit=limit,
            words=words,
        )

    @_read("/v1/overview/journal", "limit")
    def journal(
        limit: Annotated[int, QueryParameter(ge=1, le=PAGE_JOURNAL_MAX)] = PAGE_LINES,
    ) -> JournalPage:
        """What happened last, the newest first."""
        entries = tuple(hf.store.journal(limit=limit, reverse=True).entries)
        return JournalPage(entries=entries, names=agent_names(hf.agents, entries))

    return [agents, locks, jobs, journal]


def _answers(hf: Holdfast, gateways: GatewayStatuses) -> list[Any]:
    @_read("/v1/overview/why", "kind", "name")
    def why(kind: _Name, name: _Name = "") -> Why:
        """Why a lock, an agent, a workflow or the swap is as it is."""
        if kind == "lock":
            return why_lock(hf.locks, name)
        if kind == "agent":
            return why_agent(hf, name)
        if kind == "workflow":
            return why_workflow(hf.workflows, name)
        if kind == "swap":
            return why_swap(hf.workflows)
        raise InvalidValue(
            f"{kind[:40]!a} is nothing to ask about here: use lock, agent, workflow or swap",
            field="kind",
        )

    @_read("/v1/overview/jobs/{job_id:str}")
    def job(job_id: _PathName) -> ShownJob:
        """A job, why it is as it is, its progress, and its log."""
        return ShownJob(job=job_details(hf, job_id), log=_log(hf, job_id))

    @_read("/v1/overview/gateways/{agent:str}")
    def gateway(agent: _PathName) -> GatewayDetails:
        """A gateway, why it is as it is, and its newest requests."""
        line, status = gateways.one(agent)
        requests: list[RequestView] = []
        if status is not None and status.gateway_health == "healthy":
            # It may have gone since: the next refresh shows that.
            with suppress(Unavailable):
                requests = operations.requests(hf, ListRequests(agent=agent, limit=_REQUESTS))
        asks = () if status is None else status.questions
        questions = tuple(asked(of_gateway(agent, one)) for one in asks)
        return gateway_details(line, status, requests, questions)

    return [why, job, gateway]


def _log(hf: Holdfast, job_id: str) -> list[dict[str, Any]]:
    """The last lines of a job's log; none for a store that keeps none."""
    if hf.job_log is None:
        return []
    hf.catch_up()
    lines = list(hf.job_log.events(job_id))[-_LOG_LINES:]
    return [redacted(msgspec.to_builtins(line)) for line in lines]
