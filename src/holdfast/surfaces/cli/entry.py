"""Where the program starts: errors become one line on stderr and an exit status."""

import gc
import os
import sys
from collections.abc import Callable
from functools import partial

from holdfast.surfaces.cli import quick

EXIT_UNAVAILABLE = 6
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit."""
    if sys.stdout is None:
        # Before anything is done: the next file opened would be standard output, and a claim would
        # be nobody's.
        _complain("standard output is closed: nothing was done. Use >/dev/null for none")
        sys.exit(EXIT_UNAVAILABLE)
    # Characters that the locale lacks are escaped: an error would hide a change that was made.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # What is made while modules are loaded lives to the end, so a collection would find no garbage.
    gc.disable()
    arguments = sys.argv[1:]
    status = guarded(partial(quick.run, arguments))
    if status is not None:
        _leave(status)
    _leave(guarded(partial(_run_fully, arguments)) or 0)


def guarded(run: Callable[[], int | None]) -> int | None:
    """Run a command. A known error becomes one line; an unknown one is a bug, and says so."""
    try:
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader of the output has ended. Commands that change something handle this themselves.
        _abandon_output()
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a traceback is never a user's answer
        return _explain(error)


def _leave(status: int) -> None:
    # To take the interpreter down in order costs a short command a fifth of its time. The store is
    # closed, and only the output is left to be written.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError):
            # Closed, or reported already: guarded() flushes too.
            continue
    threading = sys.modules.get("threading")
    if threading and len([one for one in threading.enumerate() if not one.daemon]) > 1:
        # Another thread is left, perhaps with a server's request: Python waits for it.
        sys.exit(status)
    os._exit(status)


def _explain(error: Exception) -> int:
    from holdfast.kernel.errors import EXIT_BUG, HoldfastError, status_of

    if os.environ.get("HOLDFAST_TRACEBACK"):
        raise error
    if isinstance(error, HoldfastError):
        _complain(error.message)
        status = status_of(error).exit
    elif isinstance(error, OSError) and error.filename is None:
        # The stores raise no such error, and one about a file names it: this is our own output.
        _complain(f"standard output cannot be written: {error.strerror}")
        status = EXIT_UNAVAILABLE
    else:
        _complain(
            f"unexpected {type(error).__name__}: {error}. This is a bug; HOLDFAST_TRACEBACK=1 "
            "shows where"
        )
        status = EXIT_BUG
    try:
        sys.stdout.flush()
    except OSError:
        _abandon_output()
    return status


def _complain(message: str) -> None:
    from holdfast.surfaces.cli.output import remark

    remark(message)


def _abandon_output() -> None:
    from holdfast.surfaces.cli.output import abandon

    abandon()


def _run_fully(arguments: list[str]) -> int:
    from holdfast.surfaces.cli.imports import import_msgspec

    import_msgspec()
    from holdfast.surfaces.cli.root import run

    return run(arguments, alone=True)


if __name__ == "__main__":
    main()
