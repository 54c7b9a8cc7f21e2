"""Writes ops/dashboard.json, the Grafana dashboard: `make docs`. Change the panels here, not in the
file.
"""

import json
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).parents[1] / "ops" / "dashboard.json"
_WIDE, _HIGH = 24, 7
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_HERE = 'instance=~"$instance"'


class Panel(NamedTuple):
    """A picture: its title, what it says in one sentence, its unit, and what is drawn, as
    expression and legend.
    """

    title: str
    says: str
    unit: str
    drawn: list[tuple[str, str]]
    kind: str = "timeseries"


def _rate(metric: str, by: str, span: str = "$__rate_interval") -> str:
    return f"sum by ({by}) (rate({metric}{{{_HERE}}}[{span}]))"


def _quantile(q: float, metric: str, by: str, more: str = "") -> str:
    return (
        f"histogram_quantile({q}, sum by ({by}, le) "
        f"(rate({metric}_bucket{{{_HERE}{more}}}[$__rate_interval])))"
    )


ROWS: dict[str, list[Panel]] = {
    "Now": [
        Panel(
            "Store",
            "Whether the store takes transactions.",
            "none",
            [(f"holdfast_store_up{{{_HERE}}} unless holdfast_store_made{{{_HERE}}} == 0", "")],
            "stat",
        ),
        Panel(
            "Jobs running",
            "Jobs that somebody works on.",
            "none",
            [(f'holdfast_jobs{{{_HERE},status="running"}}', "")],
            "stat",
        ),
        Panel(
            "Jobs pending",
            "Jobs that wait for a worker.",
            "none",
            [(f'holdfast_jobs{{{_HERE},status="pending"}}', "")],
            "stat",
        ),
        Panel(
            "Waiting for locks",
            "Requests in line.",
            "none",
            [(f"sum(holdfast_lock_waiters{{{_HERE}}}) or vector(0)", "")],
            "stat",
        ),
        Panel(
            "Agents alive",
            "Agents with a fresh lease.",
            "none",
            [(f'holdfast_agents{{{_HERE},state="fresh"}}', "")],
            "stat",
        ),
        Panel(
            "Queues blocked",
            "Gateways that wait for an operator's decision.",
            "none",
            [(f'sum(holdfast_gateway_blocked{{{_HERE},why="reconciliation"}}) or vector(0)', "")],
            "stat",
        ),
    ],
    "Locks": [
        Panel(
            "Grants",
            "Grants a second.",
            "ops",
            [(_rate("holdfast_lock_grants_total", "resource"), "{{resource}}")],
        ),
        Panel(
            "Contention",
            "Which part of the grants had to be waited for.",
            "percentunit",
            [
                (
                    f"{_rate('holdfast_lock_waits_total', 'resource')} / "
                    f"{_rate('holdfast_lock_grants_total', 'resource')}",
                    "{{resource}}",
                )
            ],
        ),
        Panel(
            "Wait, 9 of 10",
            "Nine of ten waits were shorter.",
            "s",
            [(_quantile(0.9, "holdfast_lock_wait_seconds", "resource"), "{{resource}}")],
        ),
        Panel(
            "Hold, 9 of 10",
            "Nine of ten grants were held for less.",
            "s",
            [(_quantile(0.9, "holdfast_lock_hold_seconds", "resource"), "{{resource}}")],
        ),
        Panel(
            "Holders and waiters",
            "Who has something now, and who is in line.",
            "none",
            [
                (f"sum by (resource) (holdfast_lock_holders{{{_HERE}}})", "{{resource}} held"),
                (
                    f"sum by (resource) (holdfast_lock_waiters{{{_HERE}}})",
                    "{{resource}} waited for",
                ),
            ],
        ),
        Panel(
            "What went wrong",
            "Time limits, deaths, ended leases, deadlocks and kicks an hour.",
            "none",
            [
                (f"sum(increase(holdfast_lock_{what}_total{{{_HERE}}}[1h]))", what)
                for what in ("timeouts", "deaths", "expiries", "deadlocks", "kicks")
            ],
        ),
    ],
    "Work": [
        Panel(
            "Jobs",
            "Jobs by status.",
            "none",
            [(f"sum by (status) (holdfast_jobs{{{_HERE}}})", "{{status}}")],
        ),
        Panel(
            "Queues of agents",
            "Requests that have not ended.",
            "none",
            [
                (
                    f"sum by (agent, state) (holdfast_gateway_queue_depth{{{_HERE}}})",
                    "{{agent}} {{state}}",
                )
            ],
        ),
        Panel(
            "Gateways",
            "1: it answers; 0: it does not.",
            "none",
            [
                (f"holdfast_gateway_up{{{_HERE}}}", "{{agent}}"),
                (f"holdfast_gateways_unasked{{{_HERE}}}", "not asked"),
                (f"holdfast_gateway_host{{{_HERE}}}", "hosted by {{program}}"),
                (f"holdfast_gateways_hosted{{{_HERE}}}", "hosted: {{state}}"),
            ],
        ),
        Panel(
            "Queues blocked",
            "1: requests are refused, and why.",
            "none",
            [(f"holdfast_gateway_blocked{{{_HERE}}}", "{{agent}}: {{why}}")],
        ),
        Panel(
            "Agents",
            "What agents behind gateways do.",
            "none",
            [(f"sum by (state) (holdfast_agent_states{{{_HERE}}})", "{{state}}")],
        ),
        Panel(
            "Questions",
            "Questions of agents, and jobs that wait for a permission.",
            "none",
            [
                (f"holdfast_agent_questions{{{_HERE}}}", "agents"),
                (f"holdfast_jobs_waiting{{{_HERE}}}", "jobs"),
            ],
        ),
        Panel(
            "Questions, the oldest",
            "For how long nobody has answered.",
            "s",
            [
                (f"holdfast_agent_question_age_seconds{{{_HERE}}}", "agents"),
                (f"holdfast_job_waiting_age_seconds{{{_HERE}}}", "jobs"),
            ],
        ),
        Panel(
            "Registry",
            "Hosts, and leases that count.",
            "none",
            [
                (f"holdfast_registry_hosts{{{_HERE}}}", "hosts"),
                (f"holdfast_registry_host_leases{{{_HERE}}}", "host leases"),
                (f"holdfast_registry_neighbor_leases{{{_HERE}}}", "neighbour leases"),
            ],
        ),
        Panel(
            "Swap",
            "How long the swap under way has been so.",
            "s",
            [(f"holdfast_swap_age_seconds{{{_HERE}}}", "swap")],
        ),
    ],
    "Leases": [
        Panel(
            "Agents",
            "How long each counts as alive without a sign of life; less than 0: no longer.",
            "s",
            [(f"bottomk(20, holdfast_agent_lease_remaining_seconds{{{_HERE}}})", "{{name}}")],
        ),
        Panel(
            "Agents, published ago",
            "How long each generation has been there.",
            "s",
            [(f"topk(20, holdfast_agent_lease_age_seconds{{{_HERE}}})", "{{name}}")],
        ),
        Panel(
            "Workflows",
            "How long each counts as alive without a sign of life.",
            "s",
            [
                (
                    f"bottomk(20, holdfast_workflow_lease_remaining_seconds{{{_HERE}}})",
                    "{{workflow}} ({{recipe}})",
                )
            ],
        ),
        Panel(
            "Workflows, renewed ago",
            "How long ago each gave its last sign of life.",
            "s",
            [(f"topk(20, holdfast_workflow_lease_age_seconds{{{_HERE}}})", "{{workflow}}")],
        ),
        Panel(
            "Records of agents and workflows",
            "By state.",
            "none",
            [
                (f"holdfast_agents{{{_HERE}}}", "agents {{state}}"),
                (f"holdfast_workflows{{{_HERE}}}", "workflows {{state}}"),
            ],
        ),
    ],
    "Store and journal": [
        Panel(
            "Probe",
            "How long an empty transaction takes.",
            "s",
            [(f"holdfast_store_probe_seconds{{{_HERE}}}", "{{instance}}")],
        ),
        Panel(
            "Calls, 99 of 100",
            "Ninety-nine of a hundred calls of this server were shorter.",
            "s",
            [(_quantile(0.99, "holdfast_store_transaction_seconds", "operation"), "{{operation}}")],
        ),
        Panel(
            "Calls",
            "Calls a second of this server.",
            "ops",
            [(_rate("holdfast_store_transaction_seconds_count", "operation"), "{{operation}}")],
        ),
        Panel(
            "Journal lag",
            "Age of the first entry that a follower has yet to tell of.",
            "s",
            [(f"holdfast_journal_lag_seconds{{{_HERE}}}", "{{follower}}")],
        ),
        Panel(
            "What is yet to be sent",
            "Entries behind followers, and events that wait for a broker.",
            "none",
            [
                (f"holdfast_journal_lag_entries{{{_HERE}}}", "{{follower}}"),
                (f"holdfast_job_events_unsent{{{_HERE}}}", "events for the broker"),
                (f"holdfast_job_events_sendable{{{_HERE}}}", "1: a broker was chosen"),
            ],
        ),
        Panel(
            "How far back",
            "Age of the oldest entry, and the age at which entries may go.",
            "s",
            [
                (f"holdfast_journal_oldest_entry_age_seconds{{{_HERE}}}", "oldest"),
                (f"holdfast_journal_keep_seconds{{{_HERE}}}", "kept"),
            ],
        ),
        Panel(
            "Metrics themselves",
            "How long they took, and which parts could be read.",
            "none",
            [
                (f"holdfast_metrics_seconds{{{_HERE}}}", "seconds"),
                (f"holdfast_metrics_part_up{{{_HERE}}}", "{{part}}"),
            ],
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """The whole dashboard as Grafana reads it."""
    return {
        "title": "Holdfast",
        "uid": "holdfast",
        "description": (
            "Who is alive, who holds what, whose turn it is, and whether the store keeps up."
        ),
        "tags": ["holdfast"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _instance()]},
        "panels": _panels(),
    }


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    numbers, y = count(1), 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": next(numbers),
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": _at(0, y, _WIDE, 1),
            }
        )
        y += 1
        wide, high = (_WIDE // 6, 4) if row[0].kind == "stat" else (_WIDE // 3, _HIGH)
        for place, panel in enumerate(row):
            across = _WIDE // wide
            panels.append(
                _drawn(
                    next(numbers),
                    panel,
                    _at(place % across * wide, y + place // across * high, wide, high),
                )
            )
        y += -(-len(row) * wide // _WIDE) * high
    return panels


def _drawn(number: int, panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + place),
            "expr": expression,
            "legendFormat": legend,
            "datasource": _SOURCE,
        }
        for place, (expression, legend) in enumerate(panel.drawn)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": targets,
    }


def _at(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(holdfast_info, instance)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """The file's content."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text())
