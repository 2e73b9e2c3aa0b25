"""`halfbridge monitoring`: files for Prometheus and Grafana."""

from __future__ import annotations

from importlib import resources

import click


@click.group()
def monitoring() -> None:
    """Print the alert rules and the dashboard of this version."""


@monitoring.command()
def alerts() -> None:
    """Print alert rules for Prometheus, as YAML.

    The scrape job must be called halfbridge. Thresholds are starting points.
    """
    _print("alerts.yml")


@monitoring.command()
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON."""
    _print("dashboard.json")


def _print(name: str) -> None:
    file = resources.files("halfbridge").joinpath(f"monitoring/{name}")
    click.echo(file.read_text("utf-8"), nl=False)
