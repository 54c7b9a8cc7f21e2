"""A program that speaks the Agent Client Protocol, or that of codex app-server, and misbehaves as
it is told. `python protocol_program.py acp|app FOLDER [how...]`. FOLDER/prompts has each prompt
that it received, a line each, and FOLDER/sessions its conversations.

How it starts: `mute` answers nothing, `dies` ends at once, `login` needs a login, `old` speaks
another version, `forgets` has lost every conversation, `late` replays a conversation after it has
said that it is loaded, `deaf` ignores cancels.

What a prompt makes it do, by its first word: `say TEXT`, `ask` for a permission, `hold` until it is
cancelled, `child` as that and with a grandchild, `stop REASON`, `fail`, `die`, `flood`, `noise`,
`huge` (a notification), `vast` (an answer), `dumb` (reads no more input), `call` (a tool call that
runs until the cancel), `two` messages.
"""

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

Table = dict[str, Any]
KIND, FOLDER, HOW = sys.argv[1], sys.argv[2], sys.argv[3:]
ACP = KIND == "acp"
HUGE = "x" * (9 << 20)
_mutex = threading.Lock()
_cancelled = threading.Event()
_answers: dict[int, "Waiting"] = {}


class Waiting:
    def __init__(self) -> None:
        self.event = threading.Event()
        self.result: Table = {}


def send(message: Table) -> None:
    with _mutex:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def note(name: str, line: str) -> None:
    with open(f"{FOLDER}/{name}", "a") as file:
        file.write(line + "\n")


def noted(name: str) -> list[str]:
    try:
        with open(f"{FOLDER}/{name}") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def ask_client(method: str, params: Table) -> Table:
    request_id = len(_answers)
    waiting = _answers[request_id] = Waiting()
    send({"id": request_id, "method": method, "params": params})
    waiting.event.wait()
    return waiting.result


class Session:
    """The answers of one conversation, in the protocol that was chosen."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.turns = 0

    @property
    def turn(self) -> str:
        return f"turn-{os.getpid()}-{self.turns}"

    def update(self, kind: str, **content: object) -> None:
        update = {"sessionUpdate": kind, **content}
        send({"method": "session/update", "params": {"sessionId": self.id, "update": update}})

    def item(self, state: str, **item: object) -> None:
        params = {"threadId": self.id, "turnId": self.turn, "item": item}
        send({"method": f"item/{state}", "params": params})

    def say(self, text: str, message: str = "m") -> None:
        if ACP:
            content = {"type": "text", "text": text}
            self.update("agent_message_chunk", content=content, messageId=message)
        else:
            ids = {"threadId": self.id, "turnId": self.turn, "itemId": message}
            send({"method": "item/agentMessage/delta", "params": {**ids, "delta": text}})
            self.item("completed", type="agentMessage", id=message, text=text)

    def ask(self) -> str:
        if ACP:
            options = [
                {"optionId": "o-1", "kind": "allow_always", "name": "Always"},
                {"optionId": "o-2", "kind": "allow_once", "name": "Once"},
                {"optionId": "o-3", "kind": "reject_once", "name": "No"},
            ]
            call = {"toolCallId": "c", "title": "rm -rf build", "rawInput": {"command": "rm"}}
            params = {"sessionId": self.id, "toolCall": call, "options": options}
            outcome = ask_client("session/request_permission", params)["outcome"]
            return str(outcome.get("optionId") or outcome["outcome"])
        ids = {"threadId": self.id, "turnId": self.turn, "itemId": "c"}
        params = {**ids, "command": "rm -rf build", "cwd": "/"}
        return str(ask_client("item/commandExecution/requestApproval", params)["decision"])

    def call(self) -> None:
        if ACP:
            self.update("tool_call", toolCallId="c", title="make all", status="in_progress")
        else:
            self.item("started", type="commandExecution", id="c", command="make all")

    def work(self, request_id: int, prompt: str) -> None:
        word, _, rest = prompt.partition(" ")
        reason, error = "end_turn", None
        if word == "say":
            self.say(rest)
        elif word == "two":
            self.say("first", "m-1")
            self.say("second", "m-2")
        elif word == "ask":
            self.say(f"got {self.ask()}")
        elif word in ("hold", "call", "child"):
            if word == "call":
                self.call()
            if word == "child":
                child = subprocess.Popen(["setsid", "sleep", "1000"])
                note("children", f"{os.getpid()} {child.pid}")
            self.say("begun")
            _cancelled.wait()
            reason = "cancelled"
        elif word == "stop":
            self.say("part")
            reason = rest
        elif word == "fail":
            error = {"code": -32603, "message": "the model is overloaded"}
        elif word == "die":
            sys.stderr.write("\x1b[31mout of\x1b[0m memory\n")
            sys.stderr.flush()
            os._exit(3)
        elif word == "flood":
            for number in range(int(rest)):
                self.say(f"{number:08} " + "y" * 1000, f"m-{number}")
        elif word == "noise":
            with _mutex:
                sys.stdout.write('npm notice\n{"half": \n\xff\n[1]\n{"method": 3}\n{}\n\n')
                sys.stdout.flush()
            send({"id": 99999, "result": None})
            send({"method": "session/update", "params": None})
            send({"method": "session/update", "params": {"sessionId": self.id, "update": []}})
            send({"id": 5, "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}})
            self.say("still here")
        elif word == "huge":
            self.update("tool_call_update", toolCallId="c", rawOutput=HUGE)
            self.say("still here")
        elif word == "vast":
            send({"id": request_id, "result": {"stopReason": "end_turn", "_meta": HUGE}})
            return
        _cancelled.clear()
        self.end(request_id, reason, error)

    def end(self, request_id: int, reason: str, error: Table | None) -> None:
        if ACP:
            send(
                {
                    "id": request_id,
                    **({"error": error} if error else {"result": {"stopReason": reason}}),
                }
            )
            return
        status = {"end_turn": "completed", "cancelled": "interrupted"}.get(reason, "failed")
        turn: Table = {"id": self.turn, "status": "failed" if error else status, "error": error}
        send({"method": "turn/completed", "params": {"threadId": self.id, "turn": turn}})


def begin_session(request: Table) -> Session | None:
    """Answer the request for a conversation, unless it cannot be had."""
    params = request["params"]
    wanted = params.get("sessionId") or params.get("threadId")
    if "login" in HOW:
        send({"id": request["id"], "error": {"code": -32000, "message": "Authentication required"}})
        return None
    if wanted and ("forgets" in HOW or wanted not in noted("sessions")):
        send({"id": request["id"], "error": {"code": -32603, "message": "no such conversation"}})
        return None
    session = Session(wanted or f"s-{len(noted('sessions')) + 1}")
    if not wanted:
        note("sessions", session.id)
    modes = {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "plan"}]}
    result = {"sessionId": session.id, "modes": modes} if ACP else {"thread": {"id": session.id}}

    def replay() -> None:
        for prompt in noted("prompts"):
            session.update("user_message_chunk", content={"type": "text", "text": prompt})
            session.say("replayed")

    if wanted and ACP and "late" not in HOW:
        replay()
    send({"id": request["id"], "result": result})
    if wanted and "late" in HOW:
        time.sleep(0.2)
        replay()
    return session


def main() -> None:
    if "dies" in HOW:
        sys.exit("no such model")
    note("starts", str(os.getpid()))
    session: Session | None = None
    for line in sys.stdin:
        if "mute" in HOW:
            continue
        message = json.loads(line)
        method = message.get("method")
        if method is None:
            if message.get("id") in _answers:
                waiting = _answers[message["id"]]
                waiting.result = message.get("result") or {}
                waiting.event.set()
        elif method == "initialize":
            version = 2 if "old" in HOW else 1
            can = {"loadSession": True}
            methods = [{"id": "key", "name": "An API key"}]
            answer = {"protocolVersion": version, "agentCapabilities": can, "authMethods": methods}
            send({"id": message["id"], "result": answer})
        elif method == "account/read":
            needs = {"requiresOpenaiAuth": "login" in HOW, "account": None}
            send({"id": message["id"], "result": needs})
        elif method in ("session/new", "session/load", "thread/start", "thread/resume"):
            session = begin_session(message)
        elif method == "session/set_mode":
            note("modes", message["params"]["modeId"])
            send({"id": message["id"], "result": {}})
        elif method in ("session/prompt", "turn/start"):
            assert session is not None
            params = message["params"]
            prompt = (params.get("prompt") or params.get("input"))[0]["text"]
            note("prompts", prompt.partition("\n")[0][:200])
            note("sizes", str(len(prompt)))
            session.turns += 1
            if not ACP:
                turn = {"id": session.turn, "status": "inProgress"}
                send({"id": message["id"], "result": {"turn": turn}})
            if prompt == "dumb":
                time.sleep(1000)
            threading.Thread(target=session.work, args=(message["id"], prompt), daemon=True).start()
        elif method in ("session/cancel", "turn/interrupt") and "deaf" not in HOW:
            note("cancels", method)
            _cancelled.set()
            if "id" in message:
                send({"id": message["id"], "result": {}})


if __name__ == "__main__":
    main()
