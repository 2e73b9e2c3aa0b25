"""A really running daemon: what rules and dashboard name is there, and Prometheus reads it."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from halfbridge.testkit.ports import HOST, free_ports
from tests.deploy.promql import PROMETHEUS, RULES, expressions, rules
from tests.integration.installation import GROUP, Installation
from tests.integration.tail import Stored
from tests.kit.http import answer_of
from tests.kit.waiting import until
from tests.tools import tool

pytestmark = pytest.mark.broker

ANSWER_S = 10.0
WITHIN_S = 90.0  # two workers start on a machine that does other things too
STOP_S = 20.0
NOBODY = "nobody"
# `halfbridge relay run`, another process, exposes the first kind (tests/sql/test_relay_command.py).
# The other needs a cluster of several brokers (tests/faults/test_partitions_away.py).
ELSEWHERE = re.compile("halfbridge_relay_|halfbridge_partition_unavailable")
PARTITIONS = 2
SETTINGS = {
    "HALFBRIDGE_TRANSACTION_TIMEOUT_MS": "200",
    "HALFBRIDGE_CHECK_INTERVAL_MS": "500",
    "HALFBRIDGE_CHECK_BACKOFF_MS_MAX": "1000",
    "HALFBRIDGE_CHECK_COUNT_MAX": "2",
    # A machine that is short of time for a moment must not lose its membership over it.
    "HALFBRIDGE_SESSION_TIMEOUT_MS": "30000",
}


def get(url: str) -> str:
    """Return what `url` answers; empty while nobody does."""
    return answer_of(url, within_s=ANSWER_S)[1]


@contextmanager
def running(command: list[str], log: Path, environ: dict[str, str]) -> Iterator[None]:
    """Run a command while the block runs."""
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, env=environ)
    try:
        yield
        assert child.poll() is None, log.read_text("utf-8")[-2000:]
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_S)
        finally:
            child.kill()
            child.wait()


def do_a_bit_of_everything(world: Installation) -> None:
    """Leave a trace in every metric: each outcome, each kind of op, each rule of putting back."""
    orders = world.topic("orders", partitions=1)
    for partition in range(PARTITIONS):
        world.pass_through(orders, partition=partition)
    world.rollback(world.half(orders))
    committed = world.pass_through(orders)
    world.commit(committed)  # a duplicate
    world.rollback(committed)  # a conflict
    world.commit(world.half(orders), producer_group="another")  # invalid
    world.write(world.names.op, b"not an op")  # a dead letter
    world.half(orders, producer_group=NOBODY)  # nobody can be asked


def answer_unknown(world: Installation, half: Stored) -> None:
    """Answer the checks of a transaction until it is given up."""
    for number in (1, 2):
        until(
            f"check {number}",
            lambda number=number: any(
                record.check.transaction_id == half.transaction_id
                and record.check.check_number == number
                for record in world.tail(world.names.check(GROUP)).to_end()
            ),
        )
        world.answer_unknown(half, number)


@pytest.fixture(scope="module")
def metrics_port(
    kafka_bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Yield the port of a daemon with two workers that has done a bit of everything."""
    prefix = f"t{secrets.token_hex(4)}-"
    (port,) = free_ports(1)
    ours = {k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_")}
    environ = {
        **ours,
        **SETTINGS,
        "HALFBRIDGE_BOOTSTRAP_SERVERS": kafka_bootstrap_servers,
        "HALFBRIDGE_TOPIC_PREFIX": prefix,
        "HALFBRIDGE_WORKERS": str(PARTITIONS),
        "HALFBRIDGE_SLOT": f"{prefix}worker",
        "HALFBRIDGE_METRICS_PORT": str(port),
    }
    command = [sys.executable, "-m", "halfbridge", "checker", "run"]
    log = tmp_path_factory.mktemp("monitoring") / "checker.log"
    with ExitStack() as stack:
        world = Installation(kafka_bootstrap_servers, prefix)
        stack.callback(world.close)
        world.make(partitions=PARTITIONS, groups=(GROUP,))
        world.alter(world.names.half, retention_ms="60000")  # too short: a setting that is wrong
        stack.enter_context(running(command, log, environ))
        until(
            "the daemon is ready",
            lambda: '"ready": true' in get(f"http://{HOST}:{port}/readyz"),
            within_s=WITHIN_S,
        )
        do_a_bit_of_everything(world)
        answer_unknown(world, world.half(world.real("orders")))
        world.pass_through(world.real("missing"), partition=PARTITIONS - 1)  # waits for its topic
        yield port


def exposed(port: int) -> dict[str, set[str]]:
    """Return what /metrics shows: each sample's name with the labels it has."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(get(f"http://{HOST}:{port}/metrics")):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_a_running_daemon_exposes_what_rules_and_dashboard_name(metrics_port: int) -> None:
    """Every metric is a sample of it, each label one of the metrics of its expression has."""
    mine = [each for each in expressions() if not any(map(ELSEWHERE.match, each.metrics))]
    wanted = {name for each in mine for name in each.metrics}
    assert len(wanted) > 20, "the expressions are read"
    until(
        f"samples of all of {sorted(wanted)}",
        lambda: wanted <= exposed(metrics_port).keys(),
        explain=lambda: f"without {sorted(wanted - exposed(metrics_port).keys())}",
        within_s=WITHIN_S,
    )
    found = exposed(metrics_port)
    for each in mine:
        known = {label for name in each.metrics for label in found[name]}
        assert each.labels <= known, each.place


@contextmanager
def prometheus(directory: Path, target: str) -> Iterator[str]:
    """Yield the address of a Prometheus with the shipped configuration, scraping `target`."""
    binary = tool("prometheus", package="prometheus")
    config = yaml.safe_load(PROMETHEUS.read_text("utf-8"))
    config["rule_files"] = [str(RULES)]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [target]
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    (port,) = free_ports(1)
    words = {
        "config.file": path,
        "storage.tsdb.path": directory / "data",
        "web.listen-address": f"{HOST}:{port}",
    }
    command = [binary, *(f"--{name}={value}" for name, value in words.items())]
    with running(command, directory / "prometheus.log", dict(os.environ)):
        address = f"http://{HOST}:{port}"
        until("Prometheus is ready", lambda: "is Ready" in get(f"{address}/-/ready"))
        yield address


def ask(address: str, path: str, **parameters: str) -> Any:
    """Return the data of an answer of Prometheus's API."""
    text = get(f"{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
    return json.loads(text)["data"] if text else {}


def test_prometheus_has_data_for_every_panel(metrics_port: int, tmp_path: Path) -> None:
    """A real one, with the shipped configuration: rules evaluate, panels are not empty."""
    with prometheus(tmp_path, f"{HOST}:{metrics_port}") as address:
        alerts = {rule["alert"] for rule in rules()}
        for each in expressions():
            if each.place not in alerts:
                until(
                    f"{each.place}: {each.text}",
                    partial(_has_data, address, each.text),
                    within_s=WITHIN_S,
                )
        well = dict.fromkeys(alerts, "ok")
        until("all rules evaluate", lambda: _rule_health(address) == well)


def _has_data(address: str, expression: str) -> bool:
    return bool(ask(address, "query", query=expression).get("result"))


def _rule_health(address: str) -> dict[str, str]:
    groups = ask(address, "rules").get("groups", [])
    return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
