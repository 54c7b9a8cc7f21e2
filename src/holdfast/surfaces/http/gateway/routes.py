"""The gateway's routes: each parses, calls the gateway once, and renders."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import delete, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, JSONBody, PathParameter, QueryParameter, RawBody
from litestar.response import Stream

from holdfast.domains.gateway import Gateway, Status
from holdfast.domains.gateway.gateway import Asked, Reconciled
from holdfast.domains.gateway.proof import CHALLENGE_HEADER, CHALLENGE_PATTERN
from holdfast.domains.gateway.records import PROTOCOL_VERSION
from holdfast.domains.gateway.request import draft_of
from holdfast.kernel.limits import GATEWAY_WAIT_MAX_S, LIST_MAX
from holdfast.kernel.store import Entry
from holdfast.operations.gateways import Accepted, Detaching, RequestsPruned, RequestView
from holdfast.primitives.queue import RequestState
from holdfast.primitives.queue.records import ENDED
from holdfast.surfaces.http.changes import Changes
from holdfast.surfaces.http.gateway.messages import (
    Bounds,
    Decision,
    Health,
    Interrupt,
    NewRequest,
    RequestList,
    SubmitPrompt,
    view_of,
)
from holdfast.surfaces.http.gateway.shared_commit import SharedCommits
from holdfast.surfaces.http.problems import Problem, strictly
from holdfast.surfaces.http.queries import takes
from holdfast.surfaces.http.sse import events, place_of

_LOOK_EVERY_S = 0.1
_BEARER: list[dict[str, list[str]]] = [{"bearer": []}]
_NEW_REQUEST: msgspec.json.Decoder[NewRequest] = msgspec.json.Decoder(NewRequest)
_DECISION = msgspec.json.Decoder(Decision)
_BOUNDS = msgspec.json.Decoder(Bounds)
_NO_BOUNDS = Bounds()
_RequestId = Annotated[str, PathParameter(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


def _problems(*statuses: int) -> dict[int, ResponseSpec]:
    every = (401, 403, 413, 422, 500, 503, 504, *statuses)
    return {
        status: ResponseSpec(
            data_container=Problem, description="A problem", generate_examples=False
        )
        for status in every
    }


class Counter:
    """What the routes share: a gateway, who accepts for it, and what tells of changes."""

    def __init__(
        self,
        gateway: Gateway,
        changes: Changes,
        accepts: SharedCommits,
        *,
        detach: Callable[[], None],
        prove: Callable[[str], str],
    ) -> None:
        self.gateway = gateway
        self.prove = prove
        self.changes = changes
        self.accepts = accepts
        self.detach = detach
        self._looked_s = 0.0

    def status(self) -> Status:
        """The status, by a look of this moment, but not by ten looks a moment."""
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self.gateway.glance()
            self._looked_s = time.monotonic()
        return self.gateway.status()

    async def request(self, request_id: str, wait_s: float) -> RequestView:
        """A request, when it has ended or the time is up."""
        deadline = time.monotonic() + wait_s
        while True:
            mark = self.changes.mark
            request = await asyncio.to_thread(self.gateway.queue.get, request_id)
            left_s = deadline - time.monotonic()
            if request.state in ENDED or left_s <= 0 or self.changes.closed:
                return view_of(request)
            await self.changes.passed(mark, left_s)

    async def accept(self, body: bytes, idempotency_key: str | None) -> Accepted:
        """Accept what a body asks for."""
        asked = strictly(_NEW_REQUEST, body)
        kind = "submit_prompt" if isinstance(asked, SubmitPrompt) else "interrupt"
        payload = {} if isinstance(asked, Interrupt) else {"prompt": asked.payload.prompt}
        draft = draft_of(kind, payload, self.gateway.adapter.check, idempotency_key=idempotency_key)
        stored = await self.accepts.accept(Asked(draft, asked.expected_epoch))
        return Accepted(
            request_id=stored.request.request_id,
            state=stored.request.state.value,
            accepted_at=stored.request.accepted_at,
            queue_depth=stored.depth,
            epoch=stored.request.epoch,
        )

    def concerns(self, entry: Entry) -> bool:
        """Is a journal entry about this agent? On a shared store there are others."""
        return (
            entry.kind.startswith(("request.", "gateway."))
            and entry.data.get("agent") == self.gateway.agent
        )


def routes(counter: Counter) -> list[Any]:
    """The route handlers of one gateway."""
    return [
        *_of_itself(counter),
        *_of_requests(counter),
        *_of_one_request(counter),
        _of_events(counter),
    ]


def _of_itself(counter: Counter) -> list[Any]:
    @get(
        "/health",
        sync_to_thread=False,
        responses={status: _problems()[status] for status in (403, 413, 422)},
    )
    def health(
        challenge: Annotated[
            str, HeaderParameter(name=CHALLENGE_HEADER, pattern=CHALLENGE_PATTERN, required=False)
        ] = "",
    ) -> Health:
        """Does the gateway itself answer? Says nothing of the agent.

        With a challenge, it proves that it has the token.
        """
        proof = counter.prove(challenge) if challenge else msgspec.UNSET
        return Health(protocol_version=PROTOCOL_VERSION, status="ok", proof=proof)

    @get("/v1/status", sync_to_thread=True, responses=_problems(), security=_BEARER)
    def status() -> Status:
        """How gateway and agent are doing."""
        return counter.status()

    @post(
        "/v1/reconcile",
        status_code=200,
        sync_to_thread=True,
        responses=_problems(404, 409, 412),
        security=_BEARER,
    )
    def reconcile(data: JSONBody[Decision], body: RawBody) -> Reconciled:  # noqa: ARG001
        """Decide what becomes of the requests that wait for an earlier instance of the agent; then
        admission opens.
        """
        decision = strictly(_DECISION, body)
        return counter.gateway.reconcile(
            decision.action, epoch=decision.epoch, requests=decision.requests
        )

    @post(
        "/v1/detach", status_code=202, sync_to_thread=False, responses=_problems(), security=_BEARER
    )
    def detach() -> Detaching:
        """Stop this gateway, as SIGTERM does. What was accepted waits for the next one."""
        counter.detach()
        return Detaching()

    return [health, status, reconcile, detach]


def _of_requests(counter: Counter) -> list[Any]:
    @post("/v1/requests", status_code=202, responses=_problems(409, 412, 429), security=_BEARER)
    async def accept(
        # For the schema only. The body is decoded strictly: the framework would take "1" for 1.
        data: JSONBody[NewRequest],  # noqa: ARG001
        body: RawBody,
        idempotency_key: Annotated[
            str | None,
            HeaderParameter(name="Idempotency-Key", min_length=1, max_length=256, required=False),
        ] = None,
    ) -> Accepted:
        """Accept a request: it is stored, durably, before this is answered.

        The same Idempotency-Key again answers the same request.
        """
        return await counter.accept(body, idempotency_key)

    @get(
        "/v1/requests",
        sync_to_thread=True,
        opt=takes("state", "limit"),
        responses=_problems(),
        security=_BEARER,
    )
    def list_requests(
        state_: Annotated[RequestState | None, QueryParameter(name="state", required=False)] = None,
        limit: Annotated[int, QueryParameter(ge=0, le=LIST_MAX)] = 100,
    ) -> RequestList:
        """Requests in the order they came, the newest of those that match."""
        found = counter.gateway.queue.list(state=state_, limit=limit, damaged=[])
        return RequestList(requests=[view_of(one) for one in found])

    @post(
        "/v1/prune", status_code=200, sync_to_thread=True, responses=_problems(), security=_BEARER
    )
    def prune(body: RawBody, data: JSONBody[Bounds] = _NO_BOUNDS) -> RequestsPruned:  # noqa: ARG001
        """Remove finished requests beyond the bounds, with their idempotency keys.

        Those that ended within a day stay.
        """
        bounds = strictly(_BOUNDS, body or b"{}")
        return RequestsPruned(
            removed=counter.gateway.queue.prune(
                keep_finished=bounds.keep_finished, keep_s=bounds.keep_s
            )
        )

    return [accept, list_requests, prune]


def _of_one_request(counter: Counter) -> list[Any]:
    path = "/v1/requests/{request_id:str}"

    @get(path, opt=takes("wait_s"), responses=_problems(404), security=_BEARER)
    async def get_request(
        request_id: _RequestId,
        wait_s: Annotated[float, QueryParameter(ge=0, le=GATEWAY_WAIT_MAX_S)] = 0.0,
    ) -> RequestView:
        """A request; with `wait_s` when it has ended, or as it stands after that time."""
        return await counter.request(request_id, wait_s)

    @delete(
        path, status_code=200, sync_to_thread=True, responses=_problems(404, 409), security=_BEARER
    )
    def cancel(request_id: _RequestId) -> RequestView:
        """Cancel a request that was not begun."""
        return view_of(counter.gateway.cancel(request_id))

    return [get_request, cancel]


def _of_events(counter: Counter) -> Any:
    @get("/v1/events", media_type="text/event-stream", responses=_problems(), security=_BEARER)
    async def stream(
        last_event_id: Annotated[
            str | None, HeaderParameter(name="Last-Event-ID", required=False)
        ] = None,
    ) -> Stream:
        """What happens, as server-sent events; after Last-Event-ID, or from now on."""
        if last_event_id is not None:
            # Before the answer begins, so that a wrong one is refused.
            place_of(last_event_id)
        told = events(counter.gateway.queue.store, counter.changes, last_event_id, counter.concerns)
        return Stream(told, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    return stream
