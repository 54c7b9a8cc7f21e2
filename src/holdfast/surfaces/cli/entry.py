"""Where the program starts: errors of the tree become one line on stderr and an exit status."""

import os
import sys

from holdfast.surfaces.cli import quick

EXIT_UNAVAILABLE = 6
EXIT_BUG = 70
"""EX_SOFTWARE of sysexits.h: nothing that a script could deal with."""
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit."""
    if sys.stdout is None:
        # Before anything is done: the next file opened would be standard output, and a claim would
        # be nobody's.
        _complain("standard output is closed: nothing was done. Use >/dev/null for none")
        sys.exit(EXIT_UNAVAILABLE)
    # What the locale cannot say is written out rather than refused: by now a change may have been
    # made.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    arguments = sys.argv[1:]
    status = guarded(lambda: quick.run(arguments))
    if status is not None:
        _leave(status)
    sys.exit(guarded(lambda: _full(arguments)))


def guarded(run: "quick.Command") -> int | None:
    """Run a command. A known error becomes one line; an unknown one is a bug, and says so."""
    try:
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read our output has had enough. Commands that change something see to it
        # themselves.
        _abandon_output()
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a traceback is never a user's answer
        return _told(error)


def _leave(status: int) -> None:
    """End at once.

    Taking the interpreter down in order costs a short command a tenth of its time, and by now the
    store is closed and nothing is left to do but to write out what was printed.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError):
            # Closed, or told already: guarded() flushes too.
            continue
    os._exit(status)


def _told(error: Exception) -> int:
    from holdfast.kernel.errors import HoldfastError, status_of

    if os.environ.get("HOLDFAST_TRACEBACK"):
        raise error
    if isinstance(error, HoldfastError):
        _complain(error.message)
        status = status_of(error).exit
    elif isinstance(error, OSError) and error.filename is None:
        # The stores let no such error through, and one about a file names it: this is our own
        # output.
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


def _full(arguments: list[str]) -> int:
    from holdfast.surfaces.cli.root import run

    return run(arguments, alone=True)


if __name__ == "__main__":
    main()
