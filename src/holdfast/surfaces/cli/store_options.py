"""The options that choose the store of a command."""

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.runtime.configuration import REGISTRY_DIR_ENV
from holdfast.surfaces.cli.connection import given
from holdfast.surfaces.cli.hints import chosen

F = TypeVar("F", bound=Callable[..., Any])


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


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None or parameter.name is None:
        return
    if context.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT:
        given().registry_around = value
    else:
        chosen[parameter.name] = value
