"""A man in the middle who loses connections at the worst moment."""

import contextlib
import os
import re
import socket
import tempfile
import threading
from pathlib import Path

_COMMITS = re.compile(rb"COMMIT[;\0]")
_PREPARES = re.compile(
    rb"P.{4}([^\0]+)\0(?:COMMIT|[^\0]* holdfast\.calls AS mine [^\0]*)\0", re.DOTALL
)
"""A call of one message commits by itself."""
_READY = b"Z\x00\x00\x00\x05I"


class Proxy:
    """Stands between a store and the server; `lose` says what to do with the next message that
    commits.

    `before`: the server never gets it. `after`: the server has done it, but its answer is lost.
    `all`: as after, and every other connection is lost too. `for_good`: as all, and nobody gets
    through any more.
    """

    def __init__(self, server: Path) -> None:
        self._server = str(server / ".s.PGSQL.5432")
        self.folder = Path(tempfile.mkdtemp(prefix="hfpx-"))
        self._path = str(self.folder / ".s.PGSQL.5432")
        self.lose = ""
        self.lost = 0
        self._doomed: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets = {self._listener}
        self._threads[0].start()

    def close(self) -> None:
        """End all connections and threads."""
        for end in list(self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        os.unlink(self._path)
        self.folder.rmdir()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.lost and self.lose == "for_good":
                client.close()
                continue
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._server)
            self._sockets |= {client, server}
            back = threading.Thread(target=self._back, args=(client, server))
            back.start()
            names: set[bytes] = set()
            with contextlib.suppress(OSError):
                while data := client.recv(65536):
                    if _commits(data, names) and self.lose and not self.lost:
                        self.lost = 1
                        if self.lose == "before":
                            break
                        self._doomed.add(server)
                    server.sendall(data)
            self._end(client, server)
            back.join()
            self._sockets -= {client, server}

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if server in self._doomed:
                    # The whole answer is here when the server says it is ready again.
                    while not data.endswith(_READY) and (more := server.recv(65536)):
                        data += more
                    self.lost = 3
                    if self.lose in ("all", "for_good"):
                        self._end(*self._sockets - {self._listener})
                    break
                client.sendall(data)
        self._end(client, server)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _commits(data: bytes, names: set[bytes]) -> bool:
    """Does a message commit, by the word or by one of the names that the session knows it by?"""
    names.update(_PREPARES.findall(data))
    return bool(_COMMITS.search(data)) or any(b"\0%b\0" % name in data for name in names)
