"""Alert rules and dashboard as files: promtool's view of them, and that documents agree."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.promql import (
    DASHBOARD,
    PROMETHEUS,
    ROOT,
    RULES,
    RULES_TEST,
    expressions,
    panels,
    rules,
)
from tests.tools import tool

pytestmark = pytest.mark.feature


@pytest.fixture
def promtool() -> str:
    return tool("promtool", package="prometheus")


def run(promtool: str, *words: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool to its end."""
    return subprocess.run(
        [promtool, *words], cwd=directory, capture_output=True, text=True, check=False, timeout=60
    )


def alert_cases() -> list[dict[str, Any]]:
    """Return what the unit tests of the alerts expect, one entry an alert and moment."""
    found = yaml.safe_load(RULES_TEST.read_text("utf-8"))
    return [case for test in found["tests"] for case in test["alert_rule_test"]]


def test_the_alerts_fire_when_they_should(promtool: str) -> None:
    """Made-up series in, expected alerts out: promtool runs their unit tests."""
    done = run(promtool, "test", "rules", RULES_TEST.name, directory=RULES_TEST.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_tests_notice_alerts_that_never_fire(promtool: str, tmp_path: Path) -> None:
    """With every expression made false, each alert is named among what failed."""
    cases = {**yaml.safe_load(RULES_TEST.read_text("utf-8")), "rule_files": [RULES.name]}
    (tmp_path / RULES_TEST.name).write_text(yaml.safe_dump(cases), "utf-8")
    broken = [{**rule, "expr": "vector(1) > 2"} for rule in rules()]
    content = {"groups": [{"name": "halfbridge", "rules": broken}]}
    (tmp_path / RULES.name).write_text(yaml.safe_dump(content), "utf-8")
    done = run(promtool, "test", "rules", RULES_TEST.name, directory=tmp_path)
    assert done.returncode != 0
    failed = set(re.findall(r"alertname:\s*(\w+)", done.stdout + done.stderr))
    assert failed == {rule["alert"] for rule in rules()}


def test_every_alert_is_seen_firing_and_silent() -> None:
    """Its unit tests hold both; one of them alone would pass with an alert that never changes."""
    firing = {case["alertname"] for case in alert_cases() if case["exp_alerts"]}
    silent = {case["alertname"] for case in alert_cases() if not case["exp_alerts"]}
    names = {rule["alert"] for rule in rules()}
    assert firing == names
    assert silent == names


def test_every_expression_is_one(promtool: str, tmp_path: Path) -> None:
    """The dashboard's too: promtool takes each as a recording rule."""
    recorded = [
        {"record": f"check:number_{number}", "expr": each.text}
        for number, each in enumerate(expressions())
    ]
    path = tmp_path / "all.yml"
    path.write_text(json.dumps({"groups": [{"name": "all", "rules": recorded}]}), "utf-8")
    done = run(promtool, "check", "rules", str(path), directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(recorded)} rules found" in done.stdout + done.stderr


def test_the_scrape_configuration_is_one(promtool: str) -> None:
    """Prometheus would start with it, and finds the rules."""
    done = run(promtool, "check", "config", PROMETHEUS.name, directory=PROMETHEUS.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


def test_runbooks_are_there() -> None:
    """Each alert names a page that says what to do."""
    for rule in rules():
        assert (ROOT / rule["annotations"]["runbook"]).is_file(), rule["alert"]


def test_every_alert_is_named_by_its_page() -> None:
    """A reader of the page finds the alert by its name, and no page names one that is not there."""
    known = {rule["alert"] for rule in rules()}
    for rule in rules():
        page = (ROOT / rule["annotations"]["runbook"]).read_text("utf-8")
        assert f"`{rule['alert']}`" in page, rule["alert"]
    for path in (ROOT / "docs").rglob("*.md"):
        assert set(re.findall(r"`(Halfbridge[A-Z]\w+)`", path.read_text("utf-8"))) <= known | {
            "HalfbridgeStack"
        }, path


def test_panels_do_not_overlap_and_explain_themselves() -> None:
    """Each has a description and a unit; id, title and place are its own."""
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in mine) < 24, panel["title"]
        assert not mine & cells, panel["title"]
        cells |= mine
    ids = [panel["id"] for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))
