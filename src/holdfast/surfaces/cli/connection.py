"""The connection that a command works on, and the options that choose it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.app import Holdfast, connect

F = TypeVar("F", bound=Callable[..., Any])


class Given:
    """What the user said of the store, before or behind the verb; behind counts."""

    def __init__(self) -> None:
        self.store: str | None = None
        self.namespace: str | None = None
        self.registry_dir: str | None = None


def store_options(command: F) -> F:
    """Add --store and --namespace to a command."""
    for name, words in (
        ("namespace", "The part of the store to work in  [HOLDFAST_NAMESPACE, holdfast.toml; default]"),
        (
            "store",
            "sqlite:PATH, files:DIR, postgresql://... or memory:  [HOLDFAST_STORE, holdfast.toml; the user's state folder]",
        ),
    ):
        command = click.option(f"--{name}", expose_value=False, callback=_remember, help=words, metavar=name.upper())(command)
    return command


def registry_option(command: F) -> F:
    """Add --registry-dir to a command about jobs."""
    words = "A folder of jobs as files, one a job, instead of a store"
    return click.option("--registry-dir", expose_value=False, callback=_remember, help=words, metavar="DIR")(command)


def given() -> Given:
    """What the user said to the command that runs."""
    return click.get_current_context().find_object(Given) or Given()


def connected(*, create: bool = True) -> Holdfast:
    """Connect as the user said. A command that only looks makes no store: it says `create=False`."""
    said = given()
    if said.registry_dir is not None:
        return _registry(said, create=create)
    return connect(said.store, namespace=said.namespace, create=create)


def _registry(said: Given, *, create: bool) -> Holdfast:
    """A folder of jobs in place of a store."""
    if said.store is not None or not said.registry_dir:
        raise click.UsageError("--registry-dir is a folder, and takes the place of --store: say one of them")
    folder = Path(said.registry_dir).absolute()
    return connect(f"files:{folder}", namespace=said.namespace, create=create, folders={"jobs": "."})


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and parameter.name is not None:
        setattr(context.ensure_object(Given), parameter.name, value)
