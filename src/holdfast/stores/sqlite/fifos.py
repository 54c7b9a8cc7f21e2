"""Wake-ups between the processes of one machine: a FIFO for each listener, linked under every topic it hears.

A notifier lists a topic's folder, which mostly does not exist, and writes a byte to each FIFO in it. FIFOs work between
containers that share the folder, and a path of any length will do, which a Unix socket's would not.
"""

import contextlib
import errno
import os
import re
import stat
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from holdfast.access import Access, make_node, make_one_folder
from holdfast.stores.sqlite.translate import opening_failed
from holdfast.stores.waking import FdListener, check_topics, drain

_POOL_MAX = 8
_TOPIC = "t-"
_UNFINISHED = "new-"
_UNFINISHED_S = 60.0
_ADDRESS = re.compile(r"@[0-9]+-[0-9a-f]{12}\Z")


class _Once:
    """Leaves once, however often it is asked to; a forked child only closes its copy of the descriptor."""

    def __init__(self, leave: Callable[[], None], close: Callable[[], None]) -> None:
        self._leave: Callable[[], None] | None = leave
        self._close = close
        self._pid = os.getpid()

    def __call__(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            (leave if os.getpid() == self._pid else self._close)()


class Fifos:
    """The wake-up folder of one store, seen from one process and namespace."""

    def __init__(self, folder: Path, namespace: str, access: Access) -> None:
        self._folder = folder
        self._access = access
        self._namespace = namespace
        # Every change notifies a topic or two; joining paths would cost as much as looking there.
        self._topic = lru_cache(maxsize=1024)(self._topic_folder)
        self._pool: deque[tuple[str, int]] = deque()
        self._closed = False

    def listen(self, topics: Sequence[str]) -> FdListener:
        """Open an ear. It hears the topics, and its own address."""
        check_topics(topics)
        name, fd = self._idle() or self._make()
        links = [Path(self._topic(topic), name) for topic in dict.fromkeys(topics)]
        try:
            for link in links:
                self._link(name, link)
        except BaseException:
            # Whoever listens through a full disk tries again and again.
            self._leave(name, fd, links)
            raise
        return FdListener(fd, f"@{name}", _Once(lambda: self._leave(name, fd, links), lambda: os.close(fd)))

    def notify(self, topic: str) -> None:
        """Wake whoever hears the topic. Never raises: a wake-up is a hint."""
        if topic.startswith("@"):
            # Only what `_make` makes: an address may come from a record, and must not lead out of the folder.
            if _ADDRESS.match(topic):
                self._signal(self._folder / topic[1:])
            return
        folder = self._topic(topic)
        # Mostly nobody listens, and asking costs a third of an exception.
        if not os.access(folder, os.F_OK):
            return
        try:
            names = os.listdir(folder)
        except OSError:
            return
        for name in names:
            self._signal(Path(folder, name))

    def close(self, *, forked: bool = False) -> None:
        """Let the idle FIFOs go, and those still in use when their listeners leave. A forked child only closes its copies, as
        the files are its parent's, and goes on with others."""
        self._closed = not forked
        with contextlib.suppress(IndexError):
            while True:
                name, fd = self._pool.pop()
                os.close(fd)
                if not forked:
                    with contextlib.suppress(OSError):
                        os.unlink(self._folder / name)

    def _idle(self) -> tuple[str, int] | None:
        """One of those that wait for use, and still lie where notifiers look for them."""
        with contextlib.suppress(IndexError):
            while True:
                name, fd = self._pool.pop()
                if os.access(self._folder / name, os.F_OK):
                    drain(fd)
                    return name, fd
                os.close(fd)
        return None

    def _make(self) -> tuple[str, int]:
        name = f"{os.getpid()}-{os.urandom(6).hex()}"
        path = self._folder / name
        unfinished = self._folder / f"{_UNFINISHED}{name}"
        try:
            make_one_folder(self._folder, self._access)
            self._sweep()
            # It gets its name once it is open: another's sweep would take it for one that a killed listener left.
            make_node(unfinished, stat.S_IFIFO, self._access)
            # Open for both, so that it never reports an end of file when a notifier closes its side.
            fd = os.open(unfinished, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.rename(unfinished, path)
            except BaseException:
                os.close(fd)
                raise
            return name, fd
        except OSError as error:
            raise opening_failed(path, error) from None

    def _sweep(self) -> None:
        """Remove what listeners left behind that were killed: a FIFO that nobody has open takes no writer."""
        for name in os.listdir(self._folder):
            if _ADDRESS.match(f"@{name}"):
                self._sweep_one(self._folder / name)
            elif name.startswith(_TOPIC):
                with contextlib.suppress(OSError):
                    for link in os.listdir(self._folder / name):
                        self._sweep_one(self._folder / name / link)
            elif name.startswith(_UNFINISHED):
                with contextlib.suppress(OSError):
                    if time.time() - os.stat(self._folder / name).st_ctime > _UNFINISHED_S:
                        os.unlink(self._folder / name)

    def _sweep_one(self, path: Path) -> None:
        if (fd := self._reach(path)) is not None:
            os.close(fd)

    def _topic_folder(self, topic: str) -> str:
        # Two topics that share a checksum wake each other's listeners in vain, which the port allows.
        return f"{self._folder}/{_TOPIC}{zlib.crc32(f'{self._namespace}/{topic}'.encode()):08x}"

    def _link(self, name: str, link: Path) -> None:
        while True:
            try:
                # Not pathlib's, which looks again at what is there: by then its last listener may have removed it.
                with contextlib.suppress(FileExistsError):
                    make_one_folder(link.parent, self._access)
                os.link(self._folder / name, link)
            except FileExistsError:
                # Another topic of this listener has the same checksum.
                return
            except FileNotFoundError:
                if not os.path.exists(self._folder / name):
                    raise opening_failed(link, FileNotFoundError(2, "")) from None
                # The last listener of the topic removed its folder between our two steps.
                continue
            except OSError as error:
                raise opening_failed(link, error) from None
            return

    def _leave(self, name: str, fd: int, links: Sequence[Path]) -> None:
        for link in links:
            with contextlib.suppress(OSError):
                os.unlink(link)
                os.rmdir(link.parent)
        if len(self._pool) < _POOL_MAX:
            self._pool.append((name, fd))
            if self._closed:
                # Looked at only now: of the one that leaves and the one that closes, one sees the other.
                self.close()
            return
        with contextlib.suppress(OSError):
            os.unlink(self._folder / name)
        os.close(fd)

    def _signal(self, path: Path) -> None:
        fd = self._reach(path)
        if fd is not None:
            with contextlib.suppress(OSError):
                os.write(fd, b"!")
            os.close(fd)

    def _reach(self, path: Path) -> int | None:
        """The writing end of a listener's FIFO. None when nobody has it open: its listener died, and what it left goes."""
        try:
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno == errno.ENOENT and path.parent != self._folder:
                # It has left the topic since that was listed, and may live on by its address: its FIFO is not ours to remove.
                with contextlib.suppress(OSError):
                    os.rmdir(path.parent)
            if error.errno != errno.ENXIO:
                return None
        with contextlib.suppress(OSError):
            os.unlink(self._folder / path.name)
        if path.parent != self._folder:
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(path.parent)
        return None
