"""The house: layers are checked by import-linter; here is what it cannot see."""

import ast
import enum
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.kernel.codec import Plain
from tests.harness.timeouts import PATIENCE_S

ROOT = Path(__file__).parents[2]
EXTRAS = {
    "litestar",
    "uvicorn",
    "prometheus_client",
    "httpx",
    "paho",
    "psycopg",
    "psycopg_pool",
    "mcp",
}
"""The top-level modules of everything in an extra."""

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(holdfast.__path__, "holdfast.")
    # `__main__` runs the command line with the arguments of this process.
    if not name.startswith("holdfast.stores.postgres.") and name != "holdfast.__main__"
]


def _loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return set(done.stdout.split())


def test_importing_holdfast_loads_no_extra_and_next_to_nothing() -> None:
    loaded = _loaded_by("import holdfast")
    assert not {name.split(".")[0] for name in loaded} & EXTRAS
    assert {name for name in loaded if name.startswith("holdfast")} == {"holdfast"}
    assert "typing" not in loaded - _loaded_by("pass")


KIND_CHECKS = re.compile(
    r"""store\.kind\s*(==|!=|in\b|not in\b)|getattr\([\w.]*store\b|isinstance\([\w.]*store,"""
    r"""|(url|store)[\w.() "]*\.(startswith|removeprefix|partition)\(["(]"""
)


def test_only_the_stores_know_what_kind_of_store_it_is() -> None:
    source = Path(holdfast.__path__[0])
    found = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if not path.is_relative_to(source / "stores") and KIND_CHECKS.search(path.read_text())
    ]
    assert found == []


SHARED_NAMES = {"Health"}
"""The name of a schema in two OpenAPI documents: the server's and a gateway's. It is the class's."""


def test_no_two_classes_share_a_name() -> None:
    """One word, one meaning: a search for a class finds one thing."""
    source = Path(holdfast.__path__[0])
    homes: dict[str, list[str]] = {}
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(source)))
    shared = {name: found for name, found in homes.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in SHARED_NAMES} == {}


def test_no_module_imports_a_module_of_tests() -> None:
    """What tests share is in harness modules, so that no test runs because another is imported."""
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for folder in ("tests", "proof", "bench", "tools")
        for path in (ROOT / folder).rglob("*.py")
        for line in re.findall(
            r"^\s*(?:from [\w.]*\btest_\w+ import|import [\w.]*\btest_).*", path.read_text(), re.M
        )
    ]
    assert found == []


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_is_found_in_the_package(name: str) -> None:
    assert getattr(holdfast, name) is not None


def test_no_page_shows_an_import_of_what_the_package_exports() -> None:
    deep = [
        f"{page.name}: {names}"
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for names in re.findall(r"^from holdfast\.\S+ import (.+)$", page.read_text(), re.MULTILINE)
        if {name.strip() for name in names.split(",")} & set(holdfast.__all__)
    ]
    assert deep == []


def test_connecting_loads_no_extra() -> None:
    loaded = _loaded_by("import holdfast; holdfast.connect('memory:').jobs")
    assert not {name.split(".")[0] for name in loaded} & EXTRAS


LOADED_MAX = {
    "agents resolve gpu": 85,
    "jobs pick --queue q": 79,
    "jobs status a --set cancelled": 83,
    "locks acquire a --by b --ttl 60": 89,
    "locks run c -- true": 95,
}
"""The commands that scripts call in loops, and how many modules of ours each may load: every one
takes time, and most are loaded because of one line somewhere.
"""
SLOW = {"click", "rich", "argparse", "asyncio", "tomllib", "hashlib", "logging", "shutil", "ctypes"}


@pytest.fixture(scope="module")
def store_in_use(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a live agent and pending jobs."""
    url = f"sqlite:{tmp_path_factory.mktemp('store')}/s.sqlite"
    with holdfast.connect(url) as hf:
        for job_id in ("a", "b"):
            hf.jobs.register_job("x", agent="x", agent_session="q", job_id=job_id)
        manifest = "/nowhere/manifest.json"
        hf.agents.publish("gpu", backend="x_headless", tool="x", manifest_path=manifest)
    return url


@pytest.mark.parametrize("command", LOADED_MAX)
def test_a_command_of_loops_loads_only_what_it_needs(
    store_in_use: str, tmp_path: Path, command: str
) -> None:
    found = tmp_path / "modules"
    leaving = (
        "import os, sys\nleave = os._exit\n"
        "def told(status):\n"
        f"    open({str(found)!r}, 'w').write(' '.join(sys.modules))\n    leave(status)\n"
        "os._exit = told\nfrom holdfast.surfaces.cli.entry import main\n"
    )
    script = f"{leaving}sys.argv[1:] = {command.split()!r}\nmain()"
    environment = {**os.environ, "HOLDFAST_STORE": store_in_use}
    done = subprocess.run([sys.executable, "-c", script], env=environment, timeout=PATIENCE_S)
    assert done.returncode == 0
    loaded = set(found.read_text().split())
    tops = {name.split(".")[0] for name in loaded}
    # Later Pythons load others for these.
    tops -= _loaded_by("import pathlib, msgspec, sqlite3, threading")
    assert tops & (EXTRAS | SLOW) == set()
    assert not {
        name
        for name in loaded
        if name.startswith(("holdfast.stores.files", "holdfast.stores.copy"))
    }
    # How many others there are depends on Python.
    ours = {name for name in loaded if name.split(".")[0] == "holdfast"}
    assert len(ours) <= LOADED_MAX[command], sorted(ours)


def test_using_a_gateway_loads_no_extra() -> None:
    loaded = _loaded_by(
        "import holdfast.surfaces.cli.gateway; holdfast.connect('memory:').gateway('x')"
    )
    assert not {name.split(".")[0] for name in loaded} & EXTRAS


@pytest.mark.parametrize(
    ("words", "library", "hint"),
    [
        (
            ["gateway", "serve", "x", "--adapter", "command", "--", "ls"],
            "litestar",
            "serving needs litestar: pip install '.[server]'",
        ),
        (["serve"], "litestar", "serving needs litestar: pip install '.[server]'"),
        (["mcp"], "anyio", "the MCP server needs anyio: pip install '.[mcp]'"),
        (
            ["metrics"],
            "prometheus_client",
            "metrics for Prometheus need a library that is not installed: pip install '.[server]'",
        ),
        (
            ["--store", "postgresql://h/d", "jobs", "list"],
            "psycopg",
            "needs a driver that is not installed: pip install '.[postgres]'",
        ),
    ],
)
def test_a_missing_extra_is_named_with_its_install_command(
    tmp_path: Path, words: list[str], library: str, hint: str
) -> None:
    without = (
        f"import sys; sys.modules[{library!r}] = None\nfrom holdfast.surfaces.cli.entry import "
        "main\n"
    )
    script = f"{without}sys.argv[1:] = {words!r}\nmain()"
    environment = {**os.environ, "HOLDFAST_STORE": f"sqlite:{tmp_path}/store.sqlite"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 6, done.stderr
    assert f"{hint} in the checkout of Holdfast\n" in done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_every_enum_of_a_module_is_the_text_that_it_stands_for(name: str) -> None:
    module = importlib.import_module(name)
    kinds: list[type[enum.Enum]] = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and kind.__module__ == name
    ]
    for one in (one for kind in kinds for one in kind):
        assert one == one.value == str(one) == f"{one}", one
        assert hash(one) == hash(one.value), one


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name: str) -> None:
    assert (importlib.import_module(name).__doc__ or "").strip(), name


def test_every_public_name_has_a_docstring_and_so_have_its_methods() -> None:
    missing = []
    for name in holdfast.__all__:
        value = getattr(holdfast, name)
        if not (isinstance(value, type) or inspect.isfunction(value)):
            continue
        missing += [name] if not value.__doc__ else []
        missing += [f"{name}.{method}" for method in _undocumented(value)]
    assert missing == []


def _undocumented(kind: object) -> list[str]:
    """The public methods and properties of a class that have no docstring."""
    return [
        name
        for name, value in vars(kind).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | cached_property))
        and not value.__doc__
    ]


def test_the_extras_of_the_project_are_the_ones_watched_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras) == {"server", "mqtt", "postgres", "mcp", "all", "dev"}
    named = {
        re.split(r"[\[<>=]", dependency)[0]
        for name, needed in extras.items()
        if name not in ("all", "dev")
        for dependency in needed
    }
    # Only one has modules of another name, and one brings a second along.
    modules = {{"paho-mqtt": "paho"}.get(name, name.replace("-", "_")) for name in named}
    assert modules | {"psycopg_pool"} == EXTRAS
    assert {dependency.split(">")[0] for dependency in project["dependencies"]} == {
        "msgspec",
        "click",
        "rich",
    }
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    documented = {
        extra
        for page in pages
        for names in re.findall(r"'\.\[([\w,]+)\]'", page.read_text())
        for extra in names.split(",")
    }
    assert documented == {"server", "mqtt", "postgres", "mcp", "all"}


def test_every_setting_and_variable_is_documented() -> None:
    from msgspec.structs import fields

    from holdfast.kernel.settings import ENVIRONMENT, Settings

    page = (ROOT / "docs" / "settings.md").read_text()
    names = [
        *ENVIRONMENT,
        *(f.name for f in fields(Settings) if not _is_section(f.type)),
        *(
            f"{section.name}.{f.name}"
            for section in fields(Settings)
            if _is_section(section.type)
            for f in fields(section.type)
        ),
    ]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_page_of_settings_states_their_defaults() -> None:
    from holdfast.kernel.settings import Settings

    settings = Settings()
    page = (ROOT / "docs" / "settings.md").read_text()
    rows = re.findall(
        r"^\| `([a-z_]+)\.([a-z_]+)` \|.*?\|.*?\| ([\d.]+|true|false)[ |(]", page, re.M
    )
    stated = {(section, name): text for section, name, text in rows}
    actual = {key: str(getattr(getattr(settings, key[0]), key[1])).lower() for key in stated}
    assert len(stated) >= 10, "the page has another form"
    assert {key: text.removesuffix(".0") for key, text in actual.items()} == stated


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Plain)


def _error_kinds() -> "Iterator[type[errors.HoldfastError]]":
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    return (kind for kind in kinds if issubclass(kind, errors.HoldfastError))


def test_every_error_code_is_documented() -> None:
    from holdfast.kernel.errors import STATUS

    page = (ROOT / "docs" / "errors.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\w+) \|", page, re.MULTILINE)
    assert sorted(documented) == sorted(
        (kind.code, str(STATUS[kind.code].exit), str(STATUS[kind.code].http), kind.__name__)
        for kind in _error_kinds()
    )


def test_every_job_transition_is_drawn() -> None:
    from holdfast.domains.jobs.records import TRANSITIONS
    from holdfast.domains.jobs.transitions import RETRIED

    page = (
        (ROOT / "docs" / "state_machines.md")
        .read_text()
        .partition("## A job")[2]
        .partition("\n## ")[0]
    )
    drawn = re.findall(r"^ *(\S+) --> ([^:\s]+)", page, re.MULTILINE)
    steps = {
        (before.value, after.value) for before, steps in TRANSITIONS.items() for after in steps
    }
    ends = {(before.value, "[*]") for before, steps in TRANSITIONS.items() if not steps}
    retries = {(before.value, "pending") for before in RETRIED}
    assert sorted(drawn) == sorted(steps | ends | retries | {("[*]", "pending")})


def test_docs_have_no_dead_links() -> None:
    dead = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert dead == []
