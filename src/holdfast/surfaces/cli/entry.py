"""Where the program starts: errors of the tree become one line on stderr and an exit status."""

import os
import sys

from holdfast.surfaces.cli import quick

EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit."""
    arguments = sys.argv[1:]
    status = guarded(lambda: quick.run(arguments))
    if status is None:
        status = guarded(lambda: _full(arguments))
    sys.exit(status)


def guarded(run: "quick.Command") -> int | None:
    """Run a command; a known error is told in one line. Only an unknown one is a bug, and says so."""
    try:
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not fail again while flushing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - a traceback is never a user's answer
        return _told(error)


def _told(error: Exception) -> int:
    from holdfast.kernel.errors import HoldfastError, status_of

    if os.environ.get("HOLDFAST_TRACEBACK"):
        raise error
    if isinstance(error, HoldfastError):
        print(f"holdfast: {error.message}", file=sys.stderr)
        return status_of(error).exit
    print(
        f"holdfast: unexpected {type(error).__name__}: {error}. This is a bug; HOLDFAST_TRACEBACK=1 shows where",
        file=sys.stderr,
    )
    return status_of(HoldfastError("")).exit


def _full(arguments: list[str]) -> int:
    from holdfast.surfaces.cli.root import run

    return run(arguments)


if __name__ == "__main__":
    main()
