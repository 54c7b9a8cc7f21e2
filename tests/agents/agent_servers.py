"""Real HTTP servers on loopback with the endpoints of CAO's terminals and of managed agents, and
their error answers.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class World:
    """One agent behind the server. `broken` maps a path's ending to a status, or to `hang`, which
    closes without an answer.
    """

    def __init__(self) -> None:
        self.terminal: dict[str, Any] | None = {
            "id": "t1",
            "name": "dev",
            "session_name": "s1",
            "provider": "claude_code",
        }
        self.status = "idle"
        self.messages: list[str] = []
        self.keys: list[str] = []
        self.output = ""
        self.statuses: list[str] = []
        """The statuses of the next looks, before `status` applies."""
        self.broken: dict[str, int | str] = {}
        self.acts_before_breaking = False
        self.turns: dict[str, list[dict[str, Any]]] = {}
        self.turn_id: str | None = "turn-1"
        self.disposition = "accepted"
        self.state: dict[str, Any] = {
            "tracked_agent_id": "a1",
            "identity": {"tracked_agent_id": "a1", "runtime_session_id": "r1"},
            "availability": "available",
            "turn": {"phase": "ready"},
        }
        self.bodies: list[Any] = []
        self.service: str | None = None
        """What `/health` says the server is; None: there is no such route."""
        self.generation_id = "g1"
        self.events: list[dict[str, str]] = []
        self.interrupts = 0
        self.url = ""

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        path = path.removeprefix("/cao")
        if path.startswith("/terminals/"):
            return self._terminal(method, path.split("/")[2:], query)
        if path == "/health" and self.service is not None:
            return 200, {"status": "ok", "houmao_service": self.service}
        if path.startswith("/houmao/agents/a1"):
            passive = self.service == "houmao-passive-server"
            managed = self._passive if passive else self._managed
            return managed(method, path.split("/")[4:], body)
        return 404, {"detail": "Not Found"}

    def _terminal(self, method: str, parts: list[str], query: dict[str, str]) -> tuple[int, Any]:
        if self.terminal is None or parts[0] != self.terminal["id"]:
            return 404, {"detail": "Terminal not found"}
        if (method, parts[1:]) == ("GET", []):
            status = self.statuses.pop(0) if self.statuses else self.status
            return 200, {**self.terminal, "status": status}
        if (method, parts[1:]) == ("POST", ["input"]):
            self.messages.append(query["message"])
            return 200, {"success": True}
        if (method, parts[1:]) == ("POST", ["key"]):
            self.keys.append(query["key"])
            return 200, {"success": True}
        if (method, parts[1:]) == ("GET", ["output"]) and query == {"mode": "last"}:
            return 200, {"output": self.output, "mode": "last"}
        return 405, {"detail": "Method Not Allowed"}

    def _managed(self, method: str, parts: list[str], body: Any) -> tuple[int, Any]:
        if (method, parts) == ("GET", ["state"]):
            return 200, self.state
        if (method, parts) == ("POST", ["requests"]):
            self.bodies.append(body)
            kind = body["request_kind"]
            reported = {
                "success": True,
                "request_id": "mreq-1",
                "request_kind": kind,
                "disposition": self.disposition,
                "detail": "",
            }
            return 200, reported | (
                {"headless_turn_id": self.turn_id} if kind == "submit_prompt" else {}
            )
        if method == "GET" and parts[0] == "turns" and parts[1] in self.turns:
            steps = self.turns[parts[1]]
            return 200, steps.pop(0) if len(steps) > 1 else steps[0]
        return 404, {"detail": "Unknown turn"}

    def _passive(self, method: str, parts: list[str], body: Any) -> tuple[int, Any]:
        """The passive server, which refuses every unknown field."""
        if (method, parts) == ("GET", []):
            return 200, {"agent_id": "a1", "generation_id": self.generation_id}
        if (method, parts) == ("GET", ["managed-state"]):
            return 200, self.state
        if method == "POST" and parts in (["requests"], ["turns"]):
            if set(body) != {"prompt"}:
                return 422, {"detail": "Extra inputs are not permitted"}
            self.bodies.append({parts[0]: body})
            if parts == ["requests"]:
                return 200, {"status": "ok", "request_id": "gwreq-1", "detail": ""}
            return 200, {"status": "ok", "turn_id": self.turn_id, "turn_status": "active"}
        if (method, parts) == ("POST", ["interrupt"]):
            self.interrupts += 1
            return 200, {"status": "ok", "agent_id": "a1", "detail": self.disposition}
        if method == "GET" and parts[-1:] == ["events"]:
            return 200, {"entries": self.events}
        if method == "GET" and parts[:1] == ["turns"]:
            steps = self.turns[parts[1]]
            return 200, steps.pop(0) if len(steps) > 1 else steps[0]
        return 404, {"detail": "Not Found"}


@contextmanager
def serving(world: World) -> Iterator[World]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._handle()

        do_POST = do_GET

        def _handle(self) -> None:
            split = urlsplit(self.path)
            query = {
                name: values[0]
                for name, values in parse_qs(split.query, keep_blank_values=True).items()
            }
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            trouble = next(
                (how for ending, how in world.broken.items() if split.path.endswith(ending)), None
            )
            if trouble is None or world.acts_before_breaking:
                status, said = world.answer(self.command, split.path, query, body)
            if trouble == "hang":
                self.close_connection = True
                return
            if isinstance(trouble, int):
                status, said = trouble, {"detail": "broken on purpose"}
            data = b"<html>" if trouble == "html" else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    world.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield world
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
