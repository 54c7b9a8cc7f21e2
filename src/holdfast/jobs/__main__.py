"""`python -m holdfast.jobs VERB`: the same program as `holdfast jobs VERB`."""

import sys


def main() -> None:
    """Run the command line of jobs and exit."""
    from holdfast.surfaces.cli.entry import main as run

    sys.argv.insert(1, "jobs")
    run()


if __name__ == "__main__":
    main()
