"""The connection that a command works on, and the options that choose it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import REGISTRY_DIR_ENV, load_settings
from holdfast.runtime.connection import Holdfast, connect
from holdfast.surfaces.cli.hints import chosen
from holdfast.surfaces.cli.output import remark

F = TypeVar("F", bound=Callable[..., Any])


class Given:
    """What a command is given besides its options. `arguments` is the whole command line; None
    where this process runs more than that.
    """

    def __init__(self, arguments: Sequence[str] | None = None) -> None:
        self.registry_around: str | None = None
        """The folder of the worker around this command, which is used if no option says another."""
        self.arguments = arguments


def store_options(command: F) -> F:
    """Add --store and --namespace to a command."""
    for name, words in (
        (
            "namespace",
            "The part of the store to work in  [HOLDFAST_NAMESPACE, holdfast.toml; default]",
        ),
        (
            "store",
            "sqlite:PATH, files:DIR, postgresql://... or memory:  [HOLDFAST_STORE, holdfast.toml; "
            "the user's state folder]",
        ),
    ):
        command = click.option(
            f"--{name}", expose_value=False, callback=_remember, help=words, metavar=name.upper()
        )(command)
    return command


def job_store_options(command: F) -> F:
    """Add --store, --namespace and --registry-dir to a command about jobs."""
    option = click.option(
        "--registry-dir",
        envvar=REGISTRY_DIR_ENV,
        expose_value=False,
        callback=_remember,
        help="A folder with one file per job, instead of a store  [HOLDFAST_REGISTRY_DIR]",
        metavar="DIR",
    )
    return store_options(option(command))


def given() -> Given:
    """What the command that runs was given."""
    return click.get_current_context().find_object(Given) or Given()


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
    if create and hf.store.ephemeral:
        remark(
            "memory: is seen by this process alone, and ends with it: it keeps nobody apart and no "
            "work"
        )
    return hf


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None or parameter.name is None:
        return
    if context.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT:
        context.ensure_object(Given).registry_around = value
    else:
        chosen[parameter.name] = value
