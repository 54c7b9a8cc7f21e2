"""Wake-ups between the processes of one machine: a FIFO for each listener, linked under each topic
that it listens to.

A notifier lists a topic's folder, which mostly does not exist, and writes a byte to each FIFO in
it. FIFOs work between containers that share the folder, and with a path of any length, which Unix
sockets do not.
"""

import contextlib
import errno
import os
import re
import stat
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

from holdfast.kernel.errors import StoreUnavailable
from holdfast.stores.listener import FdListener, check_topics
from holdfast.stores.sqlite.errors import opening_failed
from holdfast.system.access import Access, in_folder, make_folder_in, make_node, make_one_folder
from holdfast.system.folder_walk import is_exposed

_POOL_MAX = 8
_WRITERS_MAX = 128
_TOPIC = "t-"
_UNFINISHED = "new-"
_SWEPT_MAX = 32
"""How many FIFOs a new listener probes for killed listeners. Where a thousand wait, all of them
would take 9 ms, and each that comes later probes others.
"""
_UNFINISHED_S = 60.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ADDRESS = r"@[0-9]+-[0-9a-f]{12}\Z"


class _Fifo:
    """A FIFO of this process. It is removed when nothing refers to it any more, as after an
    exception before its user had it.
    """

    def __init__(self, name: str, remove: Callable[[str], None]) -> None:
        self.name = name
        self.fd = -1
        self._remove = remove
        self._pid = os.getpid()

    def is_ours(self) -> bool:
        """False in a forked child, which may only close its copy of the parent's descriptor."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """Remove it, once."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        if self.is_ours():
            self._remove(self.name)
        os.close(fd)

    def __del__(self) -> None:
        # An exception may have come before it had any attribute.
        with contextlib.suppress(AttributeError):
            self.close()


class _Writer:
    """An open writing end of a FIFO. It is closed when nothing refers to it any more: another
    thread may just be writing.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self) -> bool:
        """Write a notice; False when the listener has closed its side."""
        try:
            os.write(self._fd, b"!")
        except BlockingIOError:
            # It is full of notices.
            pass
        except OSError:
            return False
        return True

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._fd)


class Fifos:
    """The wake-up folder of one store, seen from one process and namespace."""

    def __init__(self, folder: Path, namespace: str, access: Access) -> None:
        self._folder = folder
        self._access = access
        self._namespace = namespace
        # Every change notifies a topic or two; joining paths would cost as much as the check.
        self._topic = lru_cache(maxsize=1024)(self._topic_folder)
        self._prefix = f"{folder}/"
        self._pool: deque[_Fifo] = deque()
        self._writers: dict[str, _Writer] = {}
        """Open writing ends of FIFOs that were notified by their address, the latest last. The
        waiters of a lock wake each other again and again.
        """
        self._exposed: bool | None = None
        self._closed = False

    def listen(
        self, topics: Sequence[str], keep_in_use: Callable[[], int] | None = None
    ) -> FdListener:
        """A listener for the topics, and for its own address. `keep_in_use` is for
        `Listener.outlive`.
        """
        check_topics(topics)
        fifo = self._idle() or self._make()
        folders = [os.path.basename(self._topic(topic)) for topic in dict.fromkeys(topics)]
        try:
            for folder in folders:
                self._link(fifo.name, folder)
            return FdListener(
                fifo.fd, f"@{fifo.name}", partial(self._leave, fifo, folders), keep_in_use
            )
        except BaseException:
            # A listener on a full disk tries again and again.
            self._leave(fifo, folders)
            raise

    def notify(self, *topics: str) -> None:
        """Wake the listeners of any of the topics, each once. Never raises: a wake-up is a hint."""
        found = []
        for topic in topics:
            if topic[0:1] == "@":
                writer = self._writers.get(topic)
                if writer is not None:
                    if writer.write():
                        continue
                    self._writers.pop(topic, None)
                # Only what `_make` makes: an address may come from a record, and must not lead out
                # of the folder.
                if re.match(_ADDRESS, topic):
                    found.append(topic)
                continue
            folder = self._topic(topic)
            # Mostly nobody listens, and asking costs a third of an exception.
            if os.access(folder, os.F_OK):
                found.append(os.path.basename(folder))
        if not found:
            return
        woken: set[str] = set()

        def signal(wake: int, folder: int, name: str) -> bool:
            if name in woken:
                return True
            fd = self._open_writer(wake, folder, name)
            if fd is None:
                return False
            woken.add(name)
            writer = _Writer(fd)
            if folder == wake and writer.write():
                self._keep(f"@{name}", writer)
            elif folder != wake:
                writer.write()
            return True

        with contextlib.suppress(OSError, StoreUnavailable), self._opened() as wake:
            for name in found:
                if name.startswith("@"):
                    signal(wake, wake, name[1:])
                else:
                    self._each(wake, name, signal)

    def close(self, *, forked: bool = False) -> None:
        """Remove the idle FIFOs, and those in use when their listeners leave. A forked child only
        closes its copies, since the files are its parent's, and goes on with others.
        """
        self._closed = not forked
        self._writers.clear()
        with contextlib.suppress(IndexError):
            while True:
                self._pool.pop().close()

    def _idle(self) -> _Fifo | None:
        """An idle FIFO that still lies where notifiers open it."""
        while self._pool:
            try:
                fifo = self._pool.pop()
            except IndexError:
                # Another thread was faster.
                break
            if os.access(self._prefix + fifo.name, os.F_OK):
                return fifo
            fifo.close()
        return None

    def _make(self) -> _Fifo:
        name = f"{os.getpid()}-{os.urandom(6).hex()}"
        fifo = _Fifo(name, self._unlink)
        unfinished = f"{_UNFINISHED}{name}"
        try:
            # `make_one_folder` also names whose link this is.
            if os.path.islink(self._folder) or not os.path.isdir(self._folder):
                make_one_folder(self._folder, self._access)
                self._exposed = None
            with self._opened() as wake:
                self._each(wake, ".", self._sweep, _SWEPT_MAX)
                make_node(wake, unfinished, stat.S_IFIFO, self._access)
                # Opened for both directions, it reports no end of file when a notifier closes its
                # side.
                fifo.fd = os.open(
                    unfinished,
                    os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC,
                    dir_fd=wake,
                )
                if not stat.S_ISFIFO(os.fstat(fifo.fd).st_mode):
                    raise FileExistsError(errno.EEXIST, "another file was put in its place", name)
                # It gets its name once it is open: before that, another's sweep would take it for
                # one that a killed listener left.
                os.rename(unfinished, name, src_dir_fd=wake, dst_dir_fd=wake)
            return fifo
        except OSError as error:
            raise opening_failed(self._folder / name, error) from None

    def _sweep(self, wake: int, folder: int, name: str) -> bool:
        """Remove what a killed listener left: a FIFO that nobody has open takes no writer."""
        if name.startswith(_TOPIC) and folder == wake:
            self._each(wake, name, self._sweep, _SWEPT_MAX)
        elif name.startswith(_UNFINISHED):
            with contextlib.suppress(OSError):
                changed = os.stat(name, dir_fd=folder, follow_symlinks=False).st_ctime
                if time.time() - changed > _UNFINISHED_S:
                    os.unlink(name, dir_fd=folder)
        elif re.match(_ADDRESS, f"@{name}"):
            fd = self._open_writer(wake, folder, name)
            if fd is None:
                return False
            os.close(fd)
        return True

    def _each(
        self, wake: int, name: str, work: Callable[[int, int, str], bool], most: int | None = None
    ) -> None:
        """Do the work with each FIFO of a topic, or with `most` of them, and remove the topic's
        folder if one of them is gone and none is left.
        """
        with contextlib.suppress(OSError):
            folder = wake if name == "." else os.open(name, _FOLDER, dir_fd=wake)
            try:
                names = os.listdir(folder)
                if most is not None and len(names) > most:
                    begin = int.from_bytes(os.urandom(4), "big") % len(names)
                    names = (names + names)[begin : begin + most]
                lived = [work(wake, folder, each) for each in names]
            finally:
                if folder != wake:
                    os.close(folder)
            if folder != wake and not all(lived):
                os.rmdir(name, dir_fd=wake)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The wake-up folder, reached through no link of another user. Raises OSError and
        StoreUnavailable.
        """
        if self._exposed is None:
            self._exposed = is_exposed(str(self._folder))
        # Where nobody else can change the path, its name is enough, and costs a fifth.
        if self._exposed:
            wake = in_folder(
                self._folder, lambda around, name: os.open(name, _FOLDER, dir_fd=around)
            )
        else:
            wake = os.open(self._folder, _FOLDER)
        try:
            yield wake
        finally:
            os.close(wake)

    def _topic_folder(self, topic: str) -> str:
        # Two topics with one checksum wake each other's listeners in vain, which the port allows.
        return f"{self._folder}/{_TOPIC}{zlib.crc32(f'{self._namespace}/{topic}'.encode()):08x}"

    def _link(self, name: str, topic: str) -> None:
        while True:
            try:
                with self._opened() as wake:
                    make_folder_in(wake, topic, self._access)
                    folder = os.open(topic, _FOLDER, dir_fd=wake)
                    try:
                        os.link(
                            name, name, src_dir_fd=wake, dst_dir_fd=folder, follow_symlinks=False
                        )
                    finally:
                        os.close(folder)
            except FileExistsError:
                # Another topic of this listener has the same checksum.
                return
            except FileNotFoundError:
                if not os.path.lexists(self._folder / name):
                    raise opening_failed(
                        self._folder / topic / name, FileNotFoundError(2, "")
                    ) from None
                # The last listener of the topic removed its folder between our two steps.
                continue
            except OSError as error:
                raise opening_failed(self._folder / topic, error) from None
            return

    def _leave(self, fifo: _Fifo, topics: Sequence[str]) -> None:
        if not fifo.is_ours():
            fifo.close()
            return
        if topics:
            self._unlink_from(topics, fifo.name)
        if fifo in self._pool:
            # An exception came in between: it has left already.
            return
        if len(self._pool) >= _POOL_MAX:
            fifo.close()
            return
        self._pool.append(fifo)
        if self._closed:
            # Checked only now: of a listener that leaves and a store that closes, one sees the
            # other.
            self.close()

    def _keep(self, address: str, writer: "_Writer") -> None:
        """Keep a writing end for the next notice, and let the oldest go."""
        writers = self._writers
        try:
            while len(writers) >= _WRITERS_MAX:
                del writers[next(iter(writers))]
        except (KeyError, RuntimeError, StopIteration):
            # Another thread keeps or drops one at this moment.
            return
        writers[address] = writer

    def _unlink_from(self, topics: Sequence[str], name: str) -> None:
        """Remove a FIFO's links from the folders of topics."""
        with contextlib.suppress(OSError, StoreUnavailable), self._opened() as wake:
            for topic in topics:
                with contextlib.suppress(OSError):
                    folder = os.open(topic, _FOLDER, dir_fd=wake)
                    try:
                        os.unlink(name, dir_fd=folder)
                    finally:
                        os.close(folder)
                    os.rmdir(topic, dir_fd=wake)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(OSError, StoreUnavailable), self._opened() as wake:
            os.unlink(name, dir_fd=wake)

    def _open_writer(self, wake: int, folder: int, name: str) -> int | None:
        """The writing end of a listener's FIFO. None when nobody has it open: then its listener
        died, and what it left is removed. None too for anything else that was put there.
        """
        try:
            fd = os.open(
                name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder
            )
        except OSError as error:
            # A missing one has left the topic since it was listed, and may live on by its address.
            if error.errno == errno.ENXIO:
                for place in (wake, folder):
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=place)
            return None
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        return None
