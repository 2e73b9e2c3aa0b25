"""What PromQL expressions name: metrics and labels. Enough for alerts and dashboard."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "halfbridge" / "monitoring" / "alerts.yml"
DASHBOARD = RULES.with_name("dashboard.json")
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yml"
RULES_TEST = PROMETHEUS.with_name("rules_test.yml")
JOB = "halfbridge"
# What Prometheus itself adds to every target.
OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"job", "instance"}
# Made by Prometheus's text format out of a histogram; `le` is a bucket's upper bound.
_METRIC = re.compile(r"\b((?:halfbridge|rocketmq|process)_\w+|up)\b(\{[^}]*\})?")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
_TEMPLATE = re.compile(r"\{\{\s*\$?(?:labels\.)?(\w+)[^}]*\}\}")
_NO_LABEL = {"value", "with", "else", "end", "_"}


@dataclass(frozen=True)
class Expression:
    """One expression, with where it stands and the labels that its text shows."""

    place: str
    text: str
    shown: frozenset[str]

    @property
    def metrics(self) -> set[str]:
        """Names of the samples it reads."""
        return {name for name, _ in _METRIC.findall(self.text)} - OF_PROMETHEUS

    @property
    def labels(self) -> set[str]:
        """Labels it selects by, groups by, or shows."""
        selected = re.findall(r"(\w+)\s*=~?\s*\"", self.text)
        grouped = [name.strip() for part in _GROUPED.findall(self.text) for name in part.split(",")]
        return {*selected, *grouped, *self.shown} - LABELS_OF_PROMETHEUS


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    found = yaml.safe_load(RULES.read_text("utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def panels() -> Iterator[dict[str, Any]]:
    """Yield the dashboard's panels that show something."""
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        if panel["type"] != "row":
            yield panel


def expressions() -> list[Expression]:
    """Return every expression of rules and dashboard, variables replaced as Grafana does."""
    found = []
    for rule in rules():
        texts = " ".join(rule["annotations"].values())
        found.append(Expression(rule["alert"], rule["expr"], _shown(texts)))
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m").replace("$job", JOB)
            found.append(Expression(panel["title"], text, _shown(target["legendFormat"])))
    return found


def _shown(template: str) -> frozenset[str]:
    return frozenset(_TEMPLATE.findall(template)) - _NO_LABEL
