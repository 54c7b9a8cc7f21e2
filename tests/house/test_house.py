"""The house: layers are checked by import-linter; here is what it cannot see."""

import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).parents[2]
EXTRAS = {"litestar", "uvicorn", "prometheus_client", "httpx", "paho", "libtmux", "psycopg", "psycopg_pool", "mcp"}
"""The top-level modules of everything in an extra."""

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(holdfast.__path__, "holdfast.")
    if not name.startswith("holdfast.stores.postgres.")
]


def _loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_holdfast_loads_no_extra_and_next_to_nothing() -> None:
    loaded = _loaded_by("import holdfast")
    assert not {name.split(".")[0] for name in loaded} & EXTRAS
    assert {name for name in loaded if name.startswith("holdfast")} == {"holdfast"}


def test_connecting_loads_no_extra() -> None:
    loaded = _loaded_by("import holdfast; holdfast.connect('memory:').jobs")
    assert not {name.split(".")[0] for name in loaded} & EXTRAS


def test_picking_a_job_loads_only_what_it_needs(tmp_path: Path) -> None:
    loaded = _loaded_by(
        "import contextlib, io\nfrom holdfast.surfaces.cli import quick\n"
        f"assert quick.run(['jobs', 'pick', '--agent-session', 'x', '--store', 'sqlite:{tmp_path}/s.sqlite']) == 3"
    )
    tops = {name.split(".")[0] for name in loaded}
    assert not tops & (EXTRAS | {"click", "rich", "argparse", "asyncio", "subprocess", "tomllib"})
    assert "sqlite3" in tops


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, name
    assert "\n" not in module.__doc__.split(". ")[0].strip()[:20]


def test_every_public_thing_has_a_docstring() -> None:
    missing = []
    for name in MODULES:
        if name.startswith(("holdfast.testing", "holdfast.surfaces")):
            continue
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            public = not attribute.startswith("_") and getattr(value, "__module__", None) == name
            if public and callable(value) and not value.__doc__:
                missing.append(f"{name}.{attribute}")
    assert missing == []


def test_the_extras_of_the_project_are_the_ones_watched_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == {"server", "mqtt", "tmux", "postgres", "mcp", "all", "dev"}
    assert {dependency.split(">")[0] for dependency in project["dependencies"]} == {"msgspec", "click", "rich"}


def test_every_setting_and_variable_is_documented() -> None:
    from msgspec.structs import fields

    from holdfast.kernel.settings import ENVIRONMENT, JournalSettings, Settings

    page = (ROOT / "docs" / "settings.md").read_text()
    names = [
        *ENVIRONMENT,
        *(f.name for f in fields(Settings) if f.name != "journal"),
        *(f.name for f in fields(JournalSettings)),
    ]
    assert [name for name in names if f"`{name}`" not in page and f"`journal.{name}`" not in page] == []


def test_every_error_code_is_documented() -> None:
    from holdfast.kernel.errors import STATUS

    page = (ROOT / "docs" / "errors.md").read_text()
    for code, status in STATUS.items():
        assert f"| `{code}` | {status.exit} | {status.http} |" in page, code


def test_every_job_transition_is_drawn() -> None:
    from holdfast.domains.jobs.record import TRANSITIONS

    page = (ROOT / "docs" / "state_machines.md").read_text()
    for before, steps in TRANSITIONS.items():
        for after in steps:
            assert f"{before.value} --> {after.value}" in page


def test_docs_have_no_dead_links() -> None:
    import re

    dead = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert dead == []
