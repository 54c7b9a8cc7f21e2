"""The client of a gateway: over HTTP, found by its folder or by an address and a token.

It uses the standard library's client, which needs no extra, loads quickly and uses no proxy.
"""

import http.client
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from holdfast.adapters.gateway_folder import GatewayFolder
from holdfast.adapters.server_folder import local_address
from holdfast.adapters.upstream import http_url
from holdfast.domains.gateway.proof import CHALLENGE_HEADER, is_proof
from holdfast.domains.gateway.records import ReconcileAction, left_by
from holdfast.domains.gateway.request import check_prompt
from holdfast.kernel import errors
from holdfast.kernel.codec import to_json
from holdfast.kernel.errors import HoldfastError, InvalidValue, NotFound, Unavailable
from holdfast.kernel.limits import (
    GATEWAY_PROBE_S,
    GATEWAY_PROVE_S,
    GATEWAY_WAIT_MAX_S,
    HTTP_KEEP_ALIVE_S,
)
from holdfast.kernel.names import check_id
from holdfast.system.access import read_file

_TIMEOUT_S = 10.0
_STREAM_TIMEOUT_S = 4 * HTTP_KEEP_ALIVE_S
_LOST = (OSError, http.client.HTTPException)
_TRIES = 3
_AGAIN_S = 0.3
_HEALTH_BYTES_MAX = 4096

Document = dict[str, Any]
_KINDS: Mapping[str, type[HoldfastError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HoldfastError)
}


class Endpoint(NamedTuple):
    host: str
    port: int
    token: str
    secure: bool = False


class GatewayClient:
    """One agent's gateway. Results are the JSON that it answers; its refusals are raised as the
    errors that they name.

    `root` is the gateway's folder, which has the address and the token; or `url` and `token` are
    given. `actor` is who sends and answers. Every method raises Unavailable when no gateway
    answers. It waits `timeout_s` for each answer, and tries up to `tries` times where a repetition
    is safe.
    """

    def __init__(
        self,
        agent: str,
        *,
        root: Path,
        url: str | None = None,
        token: str | None = None,
        actor: str | None = None,
        timeout_s: float = _TIMEOUT_S,
        tries: int = _TRIES,
    ) -> None:
        if (url is None) != (token is None):
            raise InvalidValue(
                "an address needs a token, and a token needs an address: give both or neither"
            )
        self.agent = agent
        self._actor = actor
        self._advice = (
            f"start it with `holdfast gateway serve {agent}`, or the gateways of all agents with "
            "`holdfast gateway serve --all`"
        )
        self.folder = GatewayFolder(root)
        self._token = ""
        self._timeout_s = timeout_s
        self._tries = tries
        self._given = None if url is None or token is None else _address(url, token)

    def status(self) -> Document:
        """The status of gateway and agent. When no gateway answers: what remains true of the last
        status, as `not_attached`. Raises NotFound when there never was a gateway.
        """
        try:
            return self._ask("GET", "/v1/status")
        except Unavailable:
            left = self.folder.state()
            if left is None:
                raise NotFound(
                    f"no gateway of {self.agent} was ever started here: {self._advice}",
                    agent=self.agent,
                ) from None
        plain: Document = msgspec.to_builtins(left_by(left))
        return plain

    def prompt(
        self,
        text: str,
        *,
        wait_s: float = 0,
        idempotency_key: str | None = None,
        expected_epoch: int | None = None,
        sender: str | None = None,
        claimed: bool = True,
    ) -> Document:
        """Submit a prompt, and return its request: as accepted or, with `wait_s`, when it has ended
        or that time is over. `sender` is another than the client's actor; it counts as claimed
        unless the caller knows it.

        When the answer is lost, it is submitted again; its idempotency key makes that safe. Raises
        InvalidValue for an invalid prompt.
        """
        # Checked here too: the server does not read a body that is too large, and the client would
        # see only a broken connection.
        check_prompt(text)
        body: Document = {"payload": {"prompt": text}} | self._from(sender, claimed)
        if expected_epoch is not None:
            body["expected_epoch"] = expected_epoch
        return self._submit("submit_prompt", body, wait_s, idempotency_key)

    def interrupt(
        self,
        *,
        wait_s: float = 0,
        idempotency_key: str | None = None,
        sender: str | None = None,
        claimed: bool = True,
    ) -> Document:
        """Stop what the agent does. An interrupt does not wait behind the request that it stops.
        `sender` as for a prompt.
        """
        body: Document = {"payload": {}} | self._from(sender, claimed)
        return self._submit("interrupt", body, wait_s, idempotency_key)

    def questions(self) -> list[Document]:
        """What the agent asks its operator now."""
        found: list[Document] = self._ask("GET", "/v1/questions")["questions"]
        return found

    def reply(
        self, question_id: str, reply: str, *, by: str | None = None, claimed: bool = True
    ) -> Document:
        """Answer a question with the name of a choice or, where it takes one, a text; return the
        question. `by` is another than the client's actor, as `sender` of a prompt. It is never sent
        twice: when its answer is lost, the outcome is unknown.

        Raises NotFound when the question is over, InvalidValue for an answer that it does not take,
        and UpstreamUnavailable when the agent is away.
        """
        known = self._from(by, claimed)
        body = {"reply": reply}
        if known:
            body |= {"by": known["sender"], "claimed": known["sender_claimed"]}
        path = f"/v1/questions/{check_id(question_id, 'question id')}/answer"
        return self._ask("POST", path, body=body)

    def _from(self, sender: str | None, claimed: bool) -> Document:
        if sender is None:
            return {} if self._actor is None else {"sender": self._actor, "sender_claimed": False}
        return {"sender": sender, "sender_claimed": claimed}

    def requests(self, *, state: str | None = None, limit: int = 100) -> list[Document]:
        """The newest matching requests, in arrival order."""
        params = {"limit": str(limit)} | ({} if state is None else {"state": state})
        found: list[Document] = self._ask("GET", "/v1/requests", params=params)["requests"]
        return found

    def request(self, request_id: str, *, wait_s: float = 0) -> Document:
        """A request, when it has ended or `wait_s` is over. Raises NotFound."""
        deadline = time.monotonic() + wait_s
        while True:
            left_s = min(max(deadline - time.monotonic(), 0), GATEWAY_WAIT_MAX_S)
            params = {"wait_s": f"{left_s:.3f}"}
            found = self._ask("GET", _path_of(request_id), params=params, more_s=left_s)
            if found["state"] in ("completed", "failed") or time.monotonic() >= deadline:
                return found

    def cancel(self, request_id: str) -> Document:
        """Cancel a request that was not begun. Raises NotFound and ImpossibleTransition."""
        return self._ask("DELETE", _path_of(request_id))

    def reconcile(
        self, action: ReconcileAction, *, epoch: int, requests: Sequence[str] | None = None
    ) -> Document:
        """Decide what becomes of the requests that wait for an earlier instance of the agent."""
        body: Document = {"action": action, "epoch": epoch}
        if requests is not None:
            body["requests"] = list(requests)
        return self._ask("POST", "/v1/reconcile", body=body)

    def prune(self, *, keep_finished: int | None = None, keep_s: float | None = None) -> Document:
        """Remove finished requests beyond the bounds (by default the queue's own), with their
        idempotency keys; return how many. Requests that ended within a day stay, and a `keep_s`
        below that raises InvalidValue.

        When the answer is lost, the client asks again. Then the answer counts only what was left to
        remove; the journal counts what was removed before.
        """
        bounds = {"keep_finished": keep_finished, "keep_s": keep_s}
        body = {name: value for name, value in bounds.items() if value is not None}
        return self._ask("POST", "/v1/prune", body=body, more_s=GATEWAY_WAIT_MAX_S, repeatable=True)

    def detach(self) -> Document:
        """Stop the gateway. Accepted requests wait for the next one."""
        return self._ask("POST", "/v1/detach")

    def answers(self) -> bool:
        """Does a gateway answer, and is it proved to be this one?"""
        try:
            self._connect(GATEWAY_PROBE_S).close()
        except Unavailable:
            return False
        return True

    def events(self, last_event_id: str | None = None) -> Iterator[tuple[str, Document]]:
        """Events and their ids, after `last_event_id` or from now on. Ends with the gateway or the
        connection.
        """
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        with closing(self._connect(_STREAM_TIMEOUT_S)) as connection:
            try:
                answer = self._send(connection, "GET", "/v1/events", headers, None)
                if answer.status != 200:
                    raise _error(answer.status, answer.read())
                event_id = ""
                for line in answer:
                    field, _, value = line.rstrip(b"\r\n").partition(b": ")
                    if field == b"id":
                        event_id = value.decode()
                    elif field == b"data":
                        yield event_id, msgspec.json.decode(value)
            except _LOST as error:
                raise self._away(error) from None

    def _submit(self, kind: str, body: Document, wait_s: float, key: str | None) -> Document:
        body = {"schema_version": 1, "kind": kind, **body}
        key = key or secrets.token_urlsafe(18)
        accepted = self._ask("POST", "/v1/requests", body=body, key=key)
        return self.request(accepted["request_id"], wait_s=wait_s) if wait_s > 0 else accepted

    def _ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Document | None = None,
        key: str | None = None,
        more_s: float = 0,
        repeatable: bool = False,
    ) -> Document:
        """Send a request; after a lost answer send it again, if nothing can happen twice."""
        headers = {} if key is None else {"Idempotency-Key": key}
        target = path if params is None else f"{path}?{urlencode(params)}"
        tries = self._tries if method == "GET" or key is not None or repeatable else 1
        lost: Unavailable | None = None
        for left in reversed(range(tries)):
            try:
                with closing(self._connect(self._timeout_s + more_s)) as connection:
                    answer = self._send(connection, method, target, headers, body)
                    status, content = answer.status, answer.read()
            except _LOST as error:
                lost = self._away(error, outcome="none" if method == "GET" else "unknown")
            except Unavailable:
                if lost is None:
                    raise
            else:
                if 200 <= status < 300:
                    return msgspec.json.decode(content, type=dict[str, Any])
                raise _error(status, content)
            if left:
                # Nothing notifies a client when a restarted gateway listens again.
                time.sleep(_AGAIN_S)
        # The outcome of the first try is unknown, though later ones could not connect.
        assert lost is not None
        raise lost

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection to the gateway, and to no other program. Raises Unavailable when there is
        none: then nothing was sent.
        """
        address = self._address()
        kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        connection = kind(address.host, address.port, timeout=min(timeout_s, GATEWAY_PROVE_S))
        try:
            connection.connect()
            if self._given is None:
                self._check_proof(connection, address)
            connection.sock.settimeout(timeout_s)
        except _LOST as error:
            connection.close()
            raise self._away(error) from None
        except BaseException:
            connection.close()
            raise
        self._token = address.token
        return connection

    def _check_proof(self, connection: http.client.HTTPConnection, address: Endpoint) -> None:
        """Check that the listening program has the token before it is sent: the address in the
        folder may be old, and the port another program's by now. Raises Unavailable.
        """
        challenge = secrets.token_urlsafe(24)
        connection.request("GET", "/health", headers={CHALLENGE_HEADER: challenge})
        content = connection.getresponse().read(_HEALTH_BYTES_MAX)
        try:
            proof = msgspec.json.decode(content, type=dict[str, Any]).get("proof")
        except msgspec.DecodeError:
            proof = None
        if not is_proof(proof, address.token, challenge, address.port):
            raise Unavailable(
                f"another program listens at {address.host} port {address.port}, where the "
                f"gateway of {self.agent} was: {self._advice}",
                agent=self.agent,
                outcome="none",
            )

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        headers: dict[str, str],
        body: Document | None,
    ) -> http.client.HTTPResponse:
        more = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        connection.request(
            method, target, body=None if body is None else to_json(body), headers=headers | more
        )
        return connection.getresponse()

    def _address(self) -> Endpoint:
        """The present address: a restarted gateway may have another one."""
        if self._given is not None:
            return self._given
        instance = self.folder.instance()
        try:
            token = read_file(self.folder.token, private=True).decode("ascii", "replace").strip()
        except OSError:
            token = ""
        if instance is None or not token:
            raise Unavailable(
                f"no gateway of {self.agent} runs here: {self._advice}",
                agent=self.agent,
                outcome="none",
            )
        return Endpoint(local_address(instance.host), instance.port, token)

    def _away(self, error: Exception, outcome: str = "none") -> Unavailable:
        return Unavailable(
            f"the gateway of {self.agent} does not answer ({type(error).__name__}): {self._advice}",
            agent=self.agent,
            outcome=outcome,
        )


def _address(url: str, token: str) -> Endpoint:
    parts = http_url(url)
    if parts is None or parts.path.strip("/"):
        raise InvalidValue(
            f"{url[:100]!a} is no address of a gateway: write it like http://127.0.0.1:9100",
            field="url",
        )
    if not token.isascii() or not token.isprintable():
        raise InvalidValue(
            "the token has characters that no token of a gateway has: give the one in its token "
            "file",
            field="token",
        )
    secure = parts.scheme == "https"
    return Endpoint(parts.hostname or "", parts.port or (443 if secure else 80), token, secure)


def _path_of(request_id: str) -> str:
    return f"/v1/requests/{check_id(request_id, 'request id')}"


def _error(status: int, content: bytes) -> HoldfastError:
    try:
        problem = msgspec.json.decode(content, type=dict[str, Any])
        kind = _KINDS.get(str(problem["code"]), HoldfastError)
        fields = {str(name): value for name, value in dict(problem.get("fields", {})).items()}
        return kind(str(problem["message"]), **fields)
    except (msgspec.DecodeError, KeyError, TypeError):
        return Unavailable(
            f"the gateway answered with status {status}, and not as a gateway does",
            outcome="unknown",
        )
