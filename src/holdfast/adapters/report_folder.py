"""The folder in which a tool's hooks leave their reports, read by the agent's gateway.

    token                what a report of this generation begins with
    expected             the prompt that the gateway is typing
    activity.json        what the counted reports say, for the next gateway
    NAME.report          a report that is not counted yet
    reply-NAME           the FIFO in which a hook waits for the answer to its question

A report counts once; those that are found together count in the order of their names, which begin
with the time. A counted one is removed only after what it says is in `activity.json`, with its
name. So a gateway that is killed at any moment leaves nothing uncounted, and nothing counts twice.
No name is compared with an earlier one: a clock may be set back.
"""

import contextlib
import json
import logging
import os
import re
import select
import stat
import threading
from collections import deque
from pathlib import Path

import msgspec

from holdfast.adapters.tool_report import reply_document, report_in, whole_characters
from holdfast.domains.gateway.activity import Activity, Asked, ToolReport
from holdfast.kernel import faults
from holdfast.kernel.errors import InvalidValue, NotFound
from holdfast.kernel.limits import REPORT_BYTES_MAX
from holdfast.system.access import (
    make_private_folder,
    open_file,
    read_file,
    remove_file,
    replace_file,
)
from holdfast.system.folder_watch import FolderWatch

_SUFFIX = ".report"
_REPLY = re.compile("reply-[0-9]+-[0-9]+")
_KEPT = 500
"""How many counted reports are kept in memory, for those who wait for one."""
_log = logging.getLogger("holdfast.gateway")


class _Counted(msgspec.Struct, frozen=True):
    """What is stored: what the reports say, and the counted ones that may still be there."""

    names: list[str]
    activity: Activity


class ReportFolder:
    """The reports of one agent, for one gateway. `patience_s`: how long a question waits."""

    def __init__(self, folder: Path, *, patience_s: float) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self._watch = FolderWatch(folder)
        self._mutex = threading.Condition()
        self._recent: deque[tuple[int, ToolReport]] = deque(maxlen=_KEPT)
        self._number = 0
        self._counted: list[str] = []
        self._activity = Activity()
        self._loaded = False
        self._unsaved = False

    @property
    def activity(self) -> Activity:
        return self._activity

    def prepare(self) -> None:
        make_private_folder(self._folder)

    def check_owner(self) -> None:
        """Raise InvalidValue where the folder is another user's: the agent's hooks could not read
        what this process writes there.
        """
        with contextlib.suppress(OSError):
            owner = os.stat(self._folder).st_uid
            if owner != os.geteuid():
                raise InvalidValue(
                    f"the agent runs as user {owner}: serve its gateway as that user",
                    field="reports",
                    uid=owner,
                )

    def is_there(self) -> bool:
        return self._folder.is_dir()

    def mark(self) -> int:
        """A mark for `since`."""
        with self._mutex:
            return self._number

    def since(self, mark: int) -> list[ToolReport]:
        """The reports that were counted after a mark."""
        with self._mutex:
            return [report for number, report in self._recent if number > mark]

    def wait(self, timeout_s: float) -> None:
        """Wait until a report was counted, or for so long."""
        with self._mutex:
            self._mutex.wait(timeout_s)

    def read(self) -> bool:
        """Count the new reports. True if there were any."""
        with self._mutex:
            self._load()
            names = self._names()
            fresh = [name for name in names if name not in self._counted]
            for name in fresh:
                if (report := self._report(name)) is not None:
                    self._note(report)
            if fresh:
                self._counted, self._unsaved = names, True
            if self._unsaved:
                self._save()
            for name in names:
                faults.reach("reports.remove")
                # What cannot be removed, such as a folder of that name, stays counted.
                with contextlib.suppress(OSError):
                    remove_file(self._folder / f"{name}{_SUFFIX}")
            return bool(fresh)

    def peek(self) -> Activity:
        """What all reports say, counted or not. Counts none, so that a gateway still does."""
        with self._mutex:
            self._load()
            seen = self._activity
            for name in self._names():
                report = None if name in self._counted else self._report(name)
                seen = seen if report is None else seen.after(report)
            return seen

    def add(self, report: ToolReport) -> None:
        """Count a report that the tool did not make: a person stopped it."""
        with self._mutex:
            self._note(report)
            self._save()

    def expect(self, prompt: str | None) -> None:
        """Say which prompt is being typed; None: none is."""
        path = self._folder / "expected"
        if prompt is None:
            remove_file(path)
        else:
            replace_file(path, prompt.encode(), private=True)

    def asked(self, question_id: str) -> Asked | None:
        return next(
            (one for one in self._activity.asked if one.question.question_id == question_id), None
        )

    def reply(self, asked: Asked, reply: str) -> None:
        """Give an answer to the hook that waits for it. Raises NotFound when it waits no more."""
        if not self._send(asked, reply_document(asked.call, asked.question, reply)):
            self.drop(asked)
            raise NotFound(
                "the agent does not wait for this answer any more: it was answered in its own "
                "terminal, or its time was over",
                question_id=asked.question.question_id,
            )
        self.drop(asked)

    def void(self, asked: Asked) -> None:
        """End a question without an answer, so that no later answer is taken for another one's."""
        self._send(asked, b"")
        self.drop(asked)

    def drop(self, asked: Asked) -> None:
        """Forget a question."""
        with self._mutex:
            self._activity = self._activity.without(asked.question.question_id)
            self._save()

    def waits(self, asked: Asked) -> bool:
        """Does the hook still wait for an answer? Its FIFO goes with it, unless it was killed."""
        process = asked.reply_to.rpartition("-")[2]
        return bool(asked.reply_to) and all(
            os.path.exists(path) for path in (self._folder / asked.reply_to, f"/proc/{process}")
        )

    def follow(self, stop_fd: int) -> bool:
        """Sleep until something is in the folder, or `stop_fd` is readable: then False."""
        self._watch.changed()
        with select.epoll() as waiting:
            waiting.register(stop_fd, select.EPOLLIN)
            with contextlib.suppress(OSError, ValueError):
                waiting.register(self._watch.fileno(), select.EPOLLIN)
            return stop_fd not in dict(waiting.poll(1.0))

    def _send(self, asked: Asked, data: bytes) -> bool:
        # The report says where, and the agent itself can write one: only into a FIFO of here.
        if not _REPLY.fullmatch(asked.reply_to):
            return False
        try:
            # Without a reader this fails at once: the hook is gone.
            fd = os.open(
                self._folder / asked.reply_to,
                os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC,
            )
            with open(fd, "wb", buffering=0) as file:
                if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                    return False
                return not data or file.write(data) == len(data)
        except OSError:
            return False

    def _names(self) -> list[str]:
        """The reports that lie there, in their order."""
        try:
            found = os.listdir(self._folder)
        except OSError:
            return []
        return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        with contextlib.suppress(OSError, msgspec.DecodeError):
            counted = msgspec.json.decode(
                read_file(self._folder / "activity.json", private=True), type=_Counted
            )
            self._counted, self._activity = counted.names, counted.activity

    def _save(self) -> None:
        data = msgspec.json.encode(_Counted(self._counted, self._activity))
        replace_file(self._folder / "activity.json", data, private=True)
        self._unsaved = False

    def _report(self, name: str) -> ToolReport | None:
        try:
            head, _, body = self._content(name).partition(b"\n")
            token, _, reply_to = head.decode("ascii").split(" ")
            self._check(token)
            document = whole_characters(json.loads(body))
            return report_in(
                name,
                document if isinstance(document, dict) else {},
                reply_to="" if reply_to == "-" else reply_to,
                patience_s=self._patience_s,
            )
        except Exception as error:  # noqa: BLE001 - or no later report would ever be read
            # Somebody else's report, or half of one: nothing is typed because of it.
            _log.warning("report refused report=%s: %s", name, error)
            return None

    def _content(self, name: str) -> bytes:
        fd = open_file(self._folder / f"{name}{_SUFFIX}", os.O_RDONLY, make=False, private=True)
        with open(fd, "rb") as file:
            if os.fstat(fd).st_size > REPORT_BYTES_MAX:
                raise ValueError(f"it has more than {REPORT_BYTES_MAX} bytes")
            return file.read(REPORT_BYTES_MAX)

    def _check(self, token: str) -> None:
        try:
            expected = read_file(self._folder / "token", private=True).decode("ascii").strip()
        except (OSError, UnicodeError):
            expected = ""
        if not expected or token != expected:
            raise ValueError("its token is not that of this agent's generation")

    def _note(self, report: ToolReport) -> None:
        before, self._activity = self._activity.asked, self._activity.after(report)
        for asked in before:
            if asked not in self._activity.asked:
                # It was answered in the agent's terminal, or its turn is over.
                self._send(asked, b"")
        self._number += 1
        self._recent.append((self._number, report))
        self._mutex.notify_all()
