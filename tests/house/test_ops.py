"""What is shipped for operators names what there is: alert rules, their own tests, and the
dashboard.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast.kernel.limits import (
    CLOCK_SKEW_S,
    DOCTOR_CHECK_S,
    JOURNAL_LAG_SCAN_MAX,
    METRICS_CLAIMS_MAX,
    METRICS_GATEWAYS_MAX,
    METRICS_PROBE_S,
    METRICS_RESOURCES_MAX,
)
from holdfast.runtime.doctor import examine
from holdfast.runtime.metrics.sources import Metrics
from tests.harness.requirements import skip_or_fail
from tests.harness.timeouts import PATIENCE_S
from tools import dashboard

ROOT = Path(__file__).parents[2]
ALERTS, ALERTS_TEST, DASHBOARD = (
    ROOT / "ops" / name for name in ("alerts.yml", "alerts_test.yml", "dashboard.json")
)
PAGE = (ROOT / "docs" / "operations.md").read_text()


@pytest.fixture(scope="module")
def families() -> dict[str, str]:
    """Every family of metrics there is, by name, with its type."""
    with holdfast.connect("memory:") as hf:
        text = Metrics(hf, version="1").text()
    return {family.name: family.type for family in text_string_to_metric_families(text)}


def samples_of(families: dict[str, str]) -> set[str]:
    """The names that samples of these families have."""
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
    return {name + ending for name, kind in families.items() for ending in endings.get(kind, [""])}


def named_in(text: str) -> set[str]:
    return set(re.findall(r"\bholdfast_\w+", text))


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def panels() -> Iterator[dict[str, Any]]:
    return (
        panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"
    )


def test_every_metric_of_the_alerts_exists(families: dict[str, str]) -> None:
    used = {name for rule in rules() for name in named_in(rule["expr"])}
    assert used - samples_of(families) == set()
    assert len(used) > 12


def test_every_metric_of_the_alerts_tests_exists(families: dict[str, str]) -> None:
    series = {
        name
        for test in yaml.safe_load(ALERTS_TEST.read_text())["tests"]
        for one in test["input_series"]
        for name in named_in(one["series"])
    }
    assert series - samples_of(families) == set()


def test_every_metric_is_drawn_and_every_drawn_one_exists(families: dict[str, str]) -> None:
    drawn = {
        name
        for panel in panels()
        for target in panel["targets"]
        for name in named_in(target["expr"])
    }
    assert drawn - samples_of(families) == set()
    missing = {
        name
        for name in families
        if not any(sample in drawn for sample in samples_of({name: families[name]}))
    }
    assert missing == {"holdfast_info"}


def test_the_dashboard_is_what_its_script_writes() -> None:
    assert DASHBOARD.read_text() == dashboard.text()


def test_no_panel_lies_over_another() -> None:
    places = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        places += [
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
    assert len(places) == len(set(places))
    numbers = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(numbers) == len(set(numbers))


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical"), rule
        assert rule["annotations"]["summary"] and len(rule["annotations"]["description"]) > 40, rule


def test_every_command_that_an_alert_names_exists() -> None:
    from holdfast.surfaces.cli.hints import AREAS

    named = {
        word
        for rule in rules()
        for word in re.findall(r"`holdfast (\w+)", rule["annotations"]["description"])
    }
    assert named <= set(AREAS)
    assert len(named) > 5


def test_the_page_lists_every_metric_with_its_type_and_every_alert(
    families: dict[str, str],
) -> None:
    documented = dict(re.findall(r"^\| `(holdfast_\w+)`[^|]* \| (\w+) \|", PAGE, re.MULTILINE))
    assert {
        name: documented.get(name + "_total" * (kind == "counter"))
        for name, kind in families.items()
    } == families
    assert len(documented) == len(families)
    assert [rule["alert"] for rule in rules() if f"| `{rule['alert']}` |" not in PAGE] == []


def test_the_page_lists_every_check_of_the_doctor_and_no_other(tmp_path: Path) -> None:
    checks = {finding.check for finding in examine(f"sqlite:{tmp_path}/none.sqlite")}
    section = PAGE.partition("| check | finds |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == checks


def test_the_bounds_that_the_page_names_are_those_of_the_program() -> None:
    page = " ".join(PAGE.split())
    assert f"No check takes longer than {DOCTOR_CHECK_S:g} s" in page
    assert f"apart by more than {CLOCK_SKEW_S:g} s" in page
    assert f"{METRICS_RESOURCES_MAX} resources have samples of their own" in page
    assert f"beyond the {METRICS_GATEWAYS_MAX} that are asked" in page
    assert f"the {METRICS_CLAIMS_MAX} whose leases end first" in page
    assert f"one empty transaction within {METRICS_PROBE_S:g} s" in page
    assert f"up to {JOURNAL_LAG_SCAN_MAX:,}" in page


def promtool(*words: str | Path) -> str:
    program = shutil.which("promtool") or shutil.which("promtool", path=Path(sys.executable).parent)
    if program is None:
        skip_or_fail("no promtool here: it comes with Prometheus")
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_the_rules_right() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", ALERTS)


def test_promtool_finds_that_they_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", ALERTS_TEST)


def test_promtool_understands_what_the_dashboard_asks(tmp_path: Path) -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    plain = [expr.replace("$__rate_interval", "5m").replace("$instance", ".*") for expr in asked]
    recorded = [{"record": f"x{number}", "expr": expr} for number, expr in enumerate(plain)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": recorded}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", path)
