"""The page about the server says what there is: every operation, option and bound."""

import re
from pathlib import Path

from holdfast.kernel import limits

ROOT = Path(__file__).parents[2]


def _page() -> str:
    return (ROOT / "docs" / "server.md").read_text()


def test_the_page_shows_every_operation_with_its_query_and_no_other() -> None:
    from holdfast.operations import all_operations

    documented = re.findall(
        r"^\| `(GET|POST|DELETE) ([^`?]+)(?:\?([^`]*))?` \|", _page(), re.MULTILINE
    )
    queries = {
        (operation.method, operation.path): ""
        if operation.method == "POST"
        else "&".join(f"{field.name}=" for field in operation.other_fields)
        for operation in all_operations()
        if operation.served
    }
    assert {(method, path): query for method, path, query in documented} == queries


def test_the_page_shows_every_option_of_serve() -> None:
    from holdfast.surfaces.cli.serve import serve

    options = {
        name for parameter in serve.params for name in parameter.opts if name.startswith("--")
    }
    page = _page()
    assert [
        name
        for name in sorted(options - {"--store", "--namespace"})
        if f"`{name}" not in page and f" {name}" not in page
    ] == []


def test_the_bounds_that_the_page_names_are_those_of_the_program() -> None:
    page = " ".join(_page().split())
    for words in (
        f"| a body | {limits.HTTP_BODY_BYTES_MAX >> 10} KiB |",
        f"{limits.HTTP_HEADER_BYTES_MAX >> 10} KiB, {limits.HTTP_HEAD_S:g} s",
        f"| the rest of it | {limits.HTTP_BODY_S:g} s |",
        f"not read | {limits.HTTP_READ_S:g} s |",
        f"| connections | {limits.HTTP_CONNECTIONS_MAX:,} |",
        f"| {limits.SERVER_WAITS_MAX}, up to {limits.SERVER_WAIT_MAX_S:g} s each |",
        f"| {limits.SERVER_THREADS}, and those that wait |",
        f"| {limits.LIST_MAX:,} records |",
        f"The default port is {limits.SERVER_PORT}",
        f"within {limits.SERVER_LINK_S / 60:g} minutes",
        f"for {limits.SERVER_SESSION_S / 86400:g} days",
    ):
        assert words in page, words


def test_holds_are_shown_with_every_command() -> None:
    from holdfast.surfaces.cli.holds import holds

    page = (ROOT / "docs" / "locks.md").read_text()
    assert set(re.findall(r"holdfast holds\s(\w+)", page)) == set(holds.commands)
