"""What the page asks for.

Everything here reads; what its buttons do are the server's own operations.
"""

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.params import FromPath, PathParameter, QueryParameter

from holdfast.kernel.codec import Plain
from holdfast.kernel.errors import InvalidValue, Unavailable
from holdfast.kernel.limits import LABEL_CHARS_MAX, LIST_MAX, PAGE_JOURNAL_MAX, PAGE_LINES
from holdfast.kernel.store import Entry
from holdfast.operations.page.agents import AgentPage, agent_names, agent_page, why_agent
from holdfast.operations.page.explanation import Why
from holdfast.operations.page.gateways import Document, GatewayPicture, gateway_picture
from holdfast.operations.page.jobs import JobPage, JobPicture, job_page, job_picture
from holdfast.operations.page.locks import LockPage, lock_page, why_lock
from holdfast.operations.page.overview import Overview, overview
from holdfast.operations.page.timeline import Timeline, timeline
from holdfast.operations.page.workflows import why_swap, why_workflow
from holdfast.primitives.journal import redacted
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.http.page.assets import Asset, asset_named, headers_of, load_assets
from holdfast.surfaces.http.page.census import AgentCounts, GatewayStatuses
from holdfast.surfaces.http.queries import takes

_Limit = Annotated[int, QueryParameter(ge=1, le=LIST_MAX)]
_Words = Annotated[str, QueryParameter(max_length=LABEL_CHARS_MAX)]
_Name = Annotated[str, QueryParameter(max_length=LABEL_CHARS_MAX)]
_REQUESTS = 100
_LOG_LINES = 200


class JournalPage(Plain, frozen=True, kw_only=True):
    """The newest entries, the newest first."""

    entries: tuple[Entry, ...]
    names: dict[str, str]
    """The names of agents whose ids are in those entries."""


class ShownJob(Plain, frozen=True, kw_only=True):
    """A job, and the last lines of its log."""

    job: JobPicture
    log: list[Document]


def page_routes(hf: Holdfast) -> list[Any]:
    """The route handlers of the page."""
    looks = AgentCounts(hf), GatewayStatuses(hf)
    return [
        *_of_files(),
        *_at_a_glance(hf, *looks),
        *_of_lists(hf),
        *_of_what_passes(hf),
        *_whys(hf),
        *_of_one(hf, looks[1]),
    ]


def _of_files() -> list[Any]:
    assets = load_assets()
    headers = headers_of(assets)

    @get("/", include_in_schema=False, sync_to_thread=False)
    def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The page."""
        return _sent(assets["page.html"], headers, request)

    @get("/assets/{name:str}", include_in_schema=False, sync_to_thread=False)
    def asset(name: FromPath[str], request: Request[Any, Any, Any]) -> Response[bytes]:
        """One of its files."""
        return _sent(asset_named(assets, name), headers, request)

    return [page, asset]


def _sent(
    asset: Asset, headers: dict[str, str], request: Request[Any, Any, Any]
) -> Response[bytes]:
    same = request.headers.get("if-none-match") == asset.etag
    return Response(
        b"" if same else asset.content,
        status_code=304 if same else 200,
        media_type=asset.media_type,
        headers={**headers, "ETag": asset.etag},
    )


def _at_a_glance(hf: Holdfast, agents: AgentCounts, gateways: GatewayStatuses) -> list[Any]:
    @get("/v1/overview", sync_to_thread=True, include_in_schema=False)
    def at_a_glance() -> Overview:
        """How many of each there are, what needs somebody, who waits for whom, and what happened
        last.
        """
        return overview(
            hf.store, hf.locks, hf.jobs, hf.workflows, hf.agents, agents.census(), gateways.lines()
        )

    @get("/v1/timeline", sync_to_thread=True, include_in_schema=False)
    def of_holds() -> Timeline:
        """Who held and who waited for what, as far as the journal and the lock table tell."""
        return timeline(hf.store, hf.locks)

    return [at_a_glance, of_holds]


def _of_lists(hf: Holdfast) -> list[Any]:
    @get(
        "/v1/overview/agents",
        sync_to_thread=True,
        include_in_schema=False,
        opt=takes("after_name", "after_id", "limit", "words"),
    )
    def agents(
        after_name: _Name = "", after_id: _Name = "", limit: _Limit = PAGE_LINES, words: _Words = ""
    ) -> AgentPage:
        """Agents by name, behind one of them."""
        after = (after_name, after_id) if after_name else None
        return agent_page(hf.agents, hf.processes, after=after, limit=limit, words=words)

    @get(
        "/v1/overview/locks",
        sync_to_thread=True,
        include_in_schema=False,
        opt=takes("after", "limit", "words"),
    )
    def locks(after: _Name = "", limit: _Limit = PAGE_LINES, words: _Words = "") -> LockPage:
        """What is held or waited for, by name, behind one of them."""
        return lock_page(hf.locks, after=after, limit=limit, words=words)

    return [agents, locks]


def _of_what_passes(hf: Holdfast) -> list[Any]:
    @get(
        "/v1/overview/jobs",
        sync_to_thread=True,
        include_in_schema=False,
        opt=takes("status", "before_arrival", "before_id", "limit", "words"),
    )
    def jobs(
        wanted: Annotated[str, QueryParameter(name="status", max_length=20)] = "",
        before_arrival: Annotated[int, QueryParameter(ge=0)] = 0,
        before_id: _Name = "",
        limit: _Limit = PAGE_LINES,
        words: _Words = "",
    ) -> JobPage:
        """Jobs, the newest first, before one of them."""
        before = (before_arrival, before_id) if before_id else None
        return job_page(hf.jobs, status=wanted or None, before=before, limit=limit, words=words)

    @get("/v1/overview/journal", sync_to_thread=True, include_in_schema=False, opt=takes("limit"))
    def journal(
        limit: Annotated[int, QueryParameter(ge=1, le=PAGE_JOURNAL_MAX)] = PAGE_LINES,
    ) -> JournalPage:
        """What happened last, the newest first."""
        entries = tuple(hf.store.journal(limit=limit, reverse=True).entries)
        return JournalPage(entries=entries, names=agent_names(hf.agents, entries))

    return [jobs, journal]


def _whys(hf: Holdfast) -> list[Any]:
    @get(
        "/v1/overview/why", sync_to_thread=True, include_in_schema=False, opt=takes("kind", "name")
    )
    def why(kind: _Name, name: _Name = "") -> Why:
        """Why a lock, an agent, a workflow or the swap is as it is."""
        if kind == "lock":
            return why_lock(hf.locks, name)
        if kind == "agent":
            return why_agent(hf.agents.get(name), hf.agents, hf.processes)
        if kind == "workflow":
            return why_workflow(hf.workflows, name)
        if kind == "swap":
            return why_swap(hf.workflows)
        raise InvalidValue(
            f"{kind[:40]!a} is nothing to ask about here: use lock, agent, workflow or swap",
            field="kind",
        )

    return [why]


def _of_one(hf: Holdfast, gateways: GatewayStatuses) -> list[Any]:
    @get("/v1/overview/jobs/{job_id:str}", sync_to_thread=True, include_in_schema=False)
    def job(job_id: Annotated[str, PathParameter(max_length=LABEL_CHARS_MAX)]) -> ShownJob:
        """A job, why it is as it is, what it told, and its log."""
        found = hf.jobs.get_job(job_id)
        picture = job_picture(found, hf.job_events, hf.processes, embedded=hf.store.embedded)
        return ShownJob(job=picture, log=_log(hf, job_id))

    @get("/v1/overview/gateways/{agent:str}", sync_to_thread=True, include_in_schema=False)
    def gateway(agent: Annotated[str, PathParameter(max_length=LABEL_CHARS_MAX)]) -> GatewayPicture:
        """A gateway, why it is as it is, and its newest requests."""
        line, status = gateways.one(agent)
        requests: list[Document] = []
        if status is not None and status.get("gateway_health") == "healthy":
            try:
                requests = list(hf.gateway(agent).requests(limit=_REQUESTS))
            except Unavailable:
                # It has just gone. The next look says so.
                requests = []
        return gateway_picture(line, status, requests)

    return [job, gateway]


def _log(hf: Holdfast, job_id: str) -> list[Document]:
    """The last lines of a job's log; none for a store that keeps none."""
    if hf.job_log is None:
        return []
    hf.job_log.catch_up(hf.log, hf.jobs.peek, wait=False)
    lines = list(hf.job_log.events(job_id))[-_LOG_LINES:]
    return [redacted(msgspec.to_builtins(line)) for line in lines]
