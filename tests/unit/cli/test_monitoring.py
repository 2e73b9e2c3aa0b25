"""`halfbridge monitoring`: what an operator gives to Prometheus and Grafana."""

import json

import yaml
from click.testing import CliRunner

from halfbridge.cli import cli


def printed(name: str) -> str:
    """Return what a command of the group prints."""
    done = CliRunner().invoke(cli, ["monitoring", name])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_alerts_are_rules_of_prometheus() -> None:
    """YAML with the alerts, and nothing else."""
    (group,) = yaml.safe_load(printed("alerts"))["groups"]
    assert "HalfbridgeDown" in {rule["alert"] for rule in group["rules"]}


def test_the_dashboard_is_one_of_grafana() -> None:
    """JSON that an import takes as it is."""
    found = json.loads(printed("dashboard"))
    assert found["uid"] == "halfbridge"
    assert found["panels"]
