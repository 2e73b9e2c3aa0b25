"""The demo's run: a real broker, the daemon, order services that are killed, and a witness."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.shape import HALF_RETENTION_MS, TopicShape
from halfbridge.checker.admin.topics import create_topics, plan_layout
from halfbridge.demo.plan import BRINK, PRODUCER_GROUP, SERVICES, TOPICS, Kind, expectations
from halfbridge.demo.result import make_result
from halfbridge.demo.tally import Tally
from halfbridge.serde.topics import TopicNames
from halfbridge.testkit.children import ChildFailedError, NotInTimeError
from halfbridge.testkit.client_log import read_client_logs
from halfbridge.testkit.judge import judge
from halfbridge.testkit.reader import read_all, read_ops

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from halfbridge.demo.display import Display
    from halfbridge.demo.plan import Order
    from halfbridge.demo.result import DemoResult
    from halfbridge.testkit.children import Child, Children

_NAMES = TopicNames()
_PARTITIONS = 4  # so that orders of several customers are in several partitions
_SERVICE_S_MAX = 300.0  # a few seconds on a quiet machine, minutes where the cores are taken
_OUTCOME_S_MAX = 45.0  # checks come within seconds; a busy machine needs several times as long
# With the defaults, checks come after 6 s and then every 30 s up to 15 times: too long for a demo.
_LIMITS = {
    "HALFBRIDGE_TRANSACTION_TIMEOUT_MS": "2000",
    "HALFBRIDGE_CHECK_INTERVAL_MS": "1000",
    "HALFBRIDGE_CHECK_COUNT_MAX": "3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The environment of a run.

    Attributes:
        plan: The orders.
        bootstrap_servers: A broker that only this run uses.
        directory: An empty directory.
        children: Starts and ends the processes.
        display: Shows the progress.
    """

    plan: tuple[Order, ...]
    bootstrap_servers: str
    directory: Path
    children: Children
    display: Display

    def start(self, name: str, *command: str, settings: Mapping[str, str]) -> Child:
        """Start a Python program of halfbridge; its only HALFBRIDGE_ variables are `settings`."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("HALFBRIDGE_")}
        return self.children.start(
            name, (sys.executable, "-m", *command), environ={**ours, **settings}
        )


def run(stage: Stage, *, started_s: float) -> DemoResult:
    """Run the plan on `stage`, and return the result.

    Args:
        stage: The environment.
        started_s: Monotonic time at which the demo began.

    Raises:
        ChildFailedError: A process ended by itself, or with an error.
        InterruptedRunError: A signal was received.
    """
    stage.display.step("making the topics")
    _make_topics(stage.bootstrap_servers)
    stage.display.step("starting the checker and an independent read_committed consumer")
    daemon = _start_daemon(stage)
    witness, tally = _start_witness(stage)
    service = _run_services(stage, tally)
    stage.display.step("waiting for check-backs and dead letters")
    _await_outcome(stage, tally)
    for child in (service, daemon, witness):  # the witness last: it reads to the end
        status = stage.children.stop(child)
        if status != 0:
            words = child.last_words()
            raise ChildFailedError(f"{child.name} ended with status {status} on SIGTERM\n{words}")
    tally.refresh()
    _show(stage, tally)
    clients = read_client_logs(tally.logs)
    verdict = judge(
        clients,
        real=[record for record in tally.records if record.topic != _NAMES.dead],
        dead=[record for record in tally.records if record.topic == _NAMES.dead],
        ops=read_ops(read_all(stage.bootstrap_servers, (_NAMES.op,))),
    )
    seconds = time.monotonic() - started_s
    return make_result(stage.plan, clients, verdict, seconds=seconds)


def _make_topics(bootstrap_servers: str) -> None:
    cluster = Cluster(bootstrap_servers)
    layout = plan_layout(
        cluster,
        partitions=_PARTITIONS,
        replication_factor=1,
        producer_groups=(PRODUCER_GROUP,),
        retention_ms=HALF_RETENTION_MS,
    )
    create_topics(cluster, _NAMES, layout)
    for topic in TOPICS:
        cluster.create(TopicShape(topic, _PARTITIONS, ()), replication_factor=1)


def _start_daemon(stage: Stage) -> Child:
    state = stage.directory / "state"
    state.mkdir()
    settings = {
        **_LIMITS,
        "HALFBRIDGE_BOOTSTRAP_SERVERS": stage.bootstrap_servers,
        "HALFBRIDGE_STATE_DIR": str(state),
    }
    return stage.start("checker", "halfbridge", "checker", "run", settings=settings)


def _start_witness(stage: Stage) -> tuple[Child, Tally]:
    tally = Tally(
        logs=[stage.directory / f"service-{number}.jsonl" for number in range(SERVICES)],
        witnessed=stage.directory / "witness.jsonl",
        dead_topic=_NAMES.dead,
    )
    witness = stage.start(
        "witness",
        *("halfbridge.testkit.reader", "--bootstrap-servers", stage.bootstrap_servers),
        *("--topics", ",".join((*TOPICS, _NAMES.dead)), "--out", str(tally.witnessed)),
        settings={},
    )
    return witness, tally


def _run_services(stage: Stage, tally: Tally) -> Child:
    """Run the order services one after the other, kill all but the last, and return the last."""
    for number in range(SERVICES):
        share = [order for order in stage.plan if order.service == number]
        service = _start_service(stage, number)
        stage.display.step(f"order service {number + 1} of {SERVICES} places {len(share)} orders")

        def is_done(service: Child = service) -> bool:
            tally.refresh()
            _show(stage, tally)
            return BRINK.encode() in service.output.read_bytes()

        stage.children.wait_until(
            is_done, what=f"orders of {service.name}", timeout_s=_SERVICE_S_MAX
        )
        if number == SERVICES - 1:
            return service
        stage.children.kill(service)
        words = service.output.read_text("utf-8").strip()
        stage.display.step(f"SIGKILL for order service {number + 1}: {words}")
    raise AssertionError("a plan has at least one service")


def _start_service(stage: Stage, number: int) -> Child:
    return stage.start(
        f"service-{number}",
        *("halfbridge.demo.order_service", "--bootstrap-servers", stage.bootstrap_servers),
        *("--directory", str(stage.directory)),
        *("--orders", str(len(stage.plan)), "--service", str(number)),
        settings={k: v for k, v in _LIMITS.items() if k.endswith("TIMEOUT_MS")},
    )


def _await_outcome(stage: Stage, tally: Tally) -> None:
    abandoned = sum(order.kind is Kind.ABANDONED for order in stage.plan)
    total = sum(kind.total for kind in expectations(stage.plan).values())

    def is_complete() -> bool:
        tally.refresh()
        _show(stage, tally)
        return len(tally.records) >= total and len(tally.proven) >= abandoned

    try:
        stage.children.wait_until(is_complete, what="all outcomes", timeout_s=_OUTCOME_S_MAX)
    except NotInTimeError as error:
        stage.display.step(str(error))  # the history checker finds what is missing


def _show(stage: Stage, tally: Tally) -> None:
    stage.display.show(
        decided=tally.decided, delivered=tally.delivered, dead_lettered=tally.dead_lettered
    )
