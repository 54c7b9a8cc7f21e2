"""A server ends what nobody works on by itself: those who only listen to it would otherwise not
hear of a worker's death.
"""

import logging
import threading
from types import TracebackType

from holdfast.kernel.errors import HoldfastError
from holdfast.kernel.limits import SERVER_REAP_EVERY_S
from holdfast.runtime.connection import Holdfast
from holdfast.surfaces.answers.jobs import logged

_log = logging.getLogger("holdfast.serve")


class Reaping:
    """Reaps jobs now and then for the time of a `with` block, in a thread. A store that is away is
    asked again.
    """

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-reaping", daemon=True)

    def __enter__(self) -> "Reaping":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SERVER_REAP_EVERY_S):
            try:
                if self._hf.jobs.reap():
                    logged(self._hf)
            except HoldfastError as error:
                _log.info("not reaped: %s", error.message)
