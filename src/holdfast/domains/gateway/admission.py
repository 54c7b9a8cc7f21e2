"""Why a request is not accepted, why a decision does not count, and why a queue is not served."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.domains.gateway.adapter import Sighting
from holdfast.domains.gateway.record import Attachment, Server
from holdfast.domains.gateway.status import admission_of
from holdfast.kernel.errors import AgentGone, Blocked, Held, NotFound, Refused, UpstreamUnavailable


def check_admission(agent: str, attachment: Attachment, seen: Sighting, expected_epoch: int | None) -> None:
    """Refuse a request that cannot be accepted now. Raises Blocked, UpstreamUnavailable, or Refused for another epoch."""
    admission = admission_of(attachment, seen)
    if admission == "blocked_reconciliation":
        raise Blocked(
            f"the agent behind {agent} was replaced: decide first what becomes of the requests that wait, with "
            f"`holdfast gateway reconcile {agent} replay|discard --epoch {attachment.epoch}`",
            request_admission=admission,
            epoch=attachment.epoch,
        )
    if admission == "blocked_unavailable":
        raise away(agent, seen, request_admission=admission)
    if expected_epoch is not None and expected_epoch != attachment.epoch:
        raise Refused(
            f"epoch {expected_epoch} was expected and it is {attachment.epoch}: the agent was replaced since; look at it first",
            request_admission=admission,
            epoch=attachment.epoch,
            expected_epoch=expected_epoch,
        )


def away(agent: str, seen: Sighting, **fields: str) -> UpstreamUnavailable:
    """The agent is not there: AgentGone where its place is, and its own process is not in it."""
    if seen.reason:
        return AgentGone(f"nothing is sent to {agent}: {seen.detail}", reason=seen.reason, outcome="none", **fields)
    why = seen.detail or "it does not answer"
    return UpstreamUnavailable(
        f"the agent behind {agent} is not there ({why}): try again when it is back", outcome="none", **fields
    )


def check_reconcilable(attachment: Attachment, epoch: int) -> None:
    """Refuse a decision about another epoch, or about nothing. Raises Refused."""
    if epoch != attachment.epoch:
        raise Refused(
            f"the decision is about epoch {epoch} and it is {attachment.epoch}: look at the status, and decide about that",
            epoch=attachment.epoch,
            expected_epoch=epoch,
        )
    if not attachment.reconciling:
        raise Refused("there is nothing to reconcile: admission is not shut by a replaced agent", epoch=attachment.epoch)


def among(chosen: Sequence[str], stale: Sequence[str]) -> list[str]:
    """Those of the stale requests that were chosen, in the order they came. Raises NotFound for any other."""
    for request_id in chosen:
        if request_id not in stale:
            raise NotFound(
                f"request {request_id[:60]} does not wait for a decision: those of earlier epochs that were not begun do",
                request_id=request_id[:128],
            )
    return [request_id for request_id in stale if request_id in set(chosen)]


def belonging(attachment: Attachment, agent: str, owner: str | None) -> Attachment:
    """The attachment as that of its owner, if that is known. Raises Held for a queue that is another's."""
    if attachment.owner is not None and owner not in (None, attachment.owner):
        raise Held(
            f"the queue under {agent} is that of the agent with the {attachment.owner}, and not of the one with the {owner}: "
            "start the gateway again, and it gets one of its own",
            agent=agent,
            owner=attachment.owner,
        )
    return attachment if owner is None else replace(attachment, owner=owner)


def served_by(agent: str, server: Server) -> Held:
    """Another gateway serves the agent."""
    process = server.process
    return Held(
        f"a gateway of {agent} runs already, as pid {process.pid} on {process.host_id}: use it, or stop it with "
        f"`holdfast gateway detach {agent}`",
        agent=agent,
        pid=process.pid,
        host_id=process.host_id,
    )
