"""The connection that a command works on."""

import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import Holdfast, connect
from holdfast.surfaces.cli.hints import chosen
from holdfast.surfaces.cli.output import remark


class Given:
    """What a command is given besides its options. `arguments` is the whole command line; None
    where this process runs more than that.
    """

    def __init__(self, arguments: Sequence[str] | None = None) -> None:
        self.registry_around: str | None = None
        """The folder of the worker around this command, which is used if no option says another."""
        self.arguments = arguments
        self.verbose = False
        """Does it show what the library logs, and so its warnings, in a form of its own?"""


_given = Given()


def begin(arguments: Sequence[str] | None, **options: str) -> None:
    """Begin a command: what was given to another one in this process is over."""
    global _given
    chosen.clear()
    chosen.update(options)
    _given = Given(arguments)


def given() -> Given:
    """What the command that runs was given."""
    return _given


def settings_here() -> Settings:
    """The settings in force, with the options of this command."""
    return load_settings(store=chosen.get("store"), namespace=chosen.get("namespace"))


def connected(*, create: bool = True) -> Holdfast:
    """Connect by the options of this command. One that only reads makes no store:
    `create=False`.
    """
    store, namespace = chosen.get("store"), chosen.get("namespace")
    registry = chosen.get("registry_dir")
    if registry is None and store is None:
        registry = given().registry_around
    if registry is not None:
        if store is not None or not registry:
            # Loaded here, for a mistake: a command that starts fast is not parsed by click.
            import click

            raise click.UsageError(
                "--registry-dir is a folder, and takes the place of --store: say one of them"
            )
        return connect(
            f"files:{Path(registry).absolute()}",
            namespace=namespace,
            create=create,
            folders={"jobs": "."},
        )
    hf = connect(store, namespace=namespace, create=create)
    if "logging" in sys.modules and not given().verbose:
        from holdfast.surfaces.cli.logs import listen

        listen()
    if create and hf.store.ephemeral:
        remark(
            "memory: is seen by this process alone, and ends with it: it keeps nobody apart and no "
            "work"
        )
    return hf
