"""Calls of a client over HTTP to any server of the store that runs. It finds them by the token and the
notes in their folder.
"""

import http.client
import json
import os
import secrets
import time
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from holdfast.adapters.server_folder import ServerFolder, ServerInstance
from holdfast.runtime.configuration import server_root
from holdfast.runtime.connection import Holdfast
from proof.soak.child import Child

_PATIENCE_S = 90.0
_FULL, _AWAY, _LATE = 429, 503, 504


class Unheard(Exception):
    """No answer came: the call may have taken effect, or still may. A caller checks before it
    repeats it.
    """


class Answer(NamedTuple):
    """A status, and the body that came with it."""

    status: int
    body: Any

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.body["code"]) if self.status >= 400 else ""


class Caller:
    """One client, whose only process at the servers is the one that it names."""

    def __init__(self, child: Child, hf: Holdfast) -> None:
        self._child = child
        self._folder = ServerFolder(server_root(hf.settings))
        self.pid = os.getpid()

    def fresh(self) -> str:
        """A new name, so that the effect of a call without an answer is never taken for another's."""
        return f"{self._child.name}.{secrets.token_hex(5)}"

    def get(self, *path: str, **query: object) -> Answer:
        """Read. A read can be repeated until it is answered."""
        words = f"?{urlencode(query)}" if query else ""
        while True:
            try:
                return self._answered("GET", _joined(path) + words, None)
            except Unheard:
                self._child.count("unsure")

    def post(self, *path: str, **fields: object) -> Answer:
        """Change something. Raises Unheard if the outcome is unknown."""
        return self._answered("POST", _joined(path), fields)

    def _answered(self, method: str, path: str, fields: dict[str, object] | None) -> Answer:
        """The answer of a server. A call that certainly did nothing is sent again, or to another
        server.
        """
        end_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end_s:
            try:
                answer = self._sent(method, path, fields)
            except ConnectionError:
                # The server was killed before it got the call, and no other runs yet.
                answer = None
            if answer is not None and not to_be_repeated(answer):
                return answer
            self._child.pause(0.2)
        self._child.wrong(f"no server has served {method} {path} for {_PATIENCE_S:.0f} s")
        raise Unheard

    def _sent(self, method: str, path: str, fields: dict[str, object] | None) -> Answer | None:
        """The answer of one of the servers; None if there is none. Raises Unheard, and
        ConnectionError if nothing was sent.
        """
        servers = self._folder.instances()
        if not servers:
            return None
        server = self._child.draw.choice(servers)
        # The call waits for a stopped server, or gives up.
        timeout_s = self._child.draw.choice([3.0, 20.0])
        with closing(
            http.client.HTTPConnection(server.reached_at, server.port, timeout=timeout_s)
        ) as connection:
            try:
                connection.connect()
            except TimeoutError:
                return None
            return self._exchanged(connection, server, method, path, fields)

    def _exchanged(
        self,
        connection: http.client.HTTPConnection,
        server: ServerInstance,
        method: str,
        path: str,
        fields: dict[str, object] | None,
    ) -> Answer:
        headers = {
            "Authorization": f"Bearer {self._folder.token.read_text().strip()}",
            "Content-Type": "application/json",
        }
        try:
            connection.request(
                method, path, None if fields is None else json.dumps(fields), headers
            )
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            raise Unheard from None
        answer = Answer(response.status, json.loads(body) if body else None)
        if answer.status >= 500 and answer.status not in (_AWAY, _LATE):
            self._child.wrong(
                f"{method} {path} with {fields} was answered with {answer.status}: {answer.body}"
            )
        return answer


def to_be_repeated(answer: Answer) -> bool:
    """Did the server certainly do nothing, being too busy or without its store? Raises Unheard if
    that is not certain.
    """
    if answer.status not in (_FULL, _AWAY, _LATE):
        return False
    fields = answer.body["fields"]
    if fields.get("outcome") == "unknown":
        raise Unheard
    # A timed-out waiter gets the name of the lock.
    return answer.status != _LATE or "by" not in fields


def _joined(path: tuple[str, ...]) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in path)
