"""The connection that a command works on, and the options that choose it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.kernel.settings import Settings
from holdfast.runtime.configuration import load_settings
from holdfast.runtime.connection import Holdfast, connect
from holdfast.surfaces.cli import hints
from holdfast.surfaces.cli.output import remark
from holdfast.surfaces.cli.quick import REGISTRY_DIR_ENV

F = TypeVar("F", bound=Callable[..., Any])


class Given:
    """What the user said of the store, before or behind the verb; behind counts."""

    def __init__(self) -> None:
        self.store: str | None = None
        self.namespace: str | None = None
        self.registry_dir: str | None = None
        self.registry_around: str | None = None
        """The folder of the worker that this runs inside of, for who says nothing else."""
        self.arguments: Sequence[str] | None = None
        """The whole command line; None where this process runs more than that."""

    @property
    def registry(self) -> str | None:
        """The folder of jobs to work on in place of a store."""
        return (
            self.registry_around
            if self.registry_dir is None and self.store is None
            else self.registry_dir
        )


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
    """What the user said to the command that runs."""
    return click.get_current_context().find_object(Given) or Given()


def settings_here() -> Settings:
    """The settings in force, with what the user said of the store."""
    said = given()
    return load_settings(store=said.store, namespace=said.namespace)


def connected(*, create: bool = True) -> Holdfast:
    """Connect as the user said. A command that only reads makes no store: `create=False`."""
    said = given()
    if said.registry is not None:
        return _registry(said, said.registry, create=create)
    hf = connect(said.store, namespace=said.namespace, create=create)
    if create and hf.store.ephemeral:
        remark(
            "memory: is seen by this process alone, and ends with it: it keeps nobody apart and no "
            "work"
        )
    return hf


def _registry(said: Given, registry: str, *, create: bool) -> Holdfast:
    """A folder of jobs in place of a store."""
    if said.store is not None or not registry:
        raise click.UsageError(
            "--registry-dir is a folder, and takes the place of --store: say one of them"
        )
    folder = Path(registry).absolute()
    return connect(
        f"files:{folder}", namespace=said.namespace, create=create, folders={"jobs": "."}
    )


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None or parameter.name is None:
        return
    said = context.ensure_object(Given)
    if context.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT:
        said.registry_around = value
    else:
        setattr(said, parameter.name, value)
        hints.remember(parameter.name, value)
