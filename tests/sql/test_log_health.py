"""What a log subscription says of itself while it runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import enumerate as threads
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from halfbridge.sql.local_messages.errors import DrainError
from halfbridge.sql.log_subscription.postgresql import PostgresqlLog
from halfbridge.sql.log_subscription.progress import Progress
from halfbridge.sql.log_subscription.service import LogRelayService
from tests.kit.waiting import until
from tests.sql.log_relay import Relayed, subscription
from tests.sql.log_scene import NAME, Orders

if TYPE_CHECKING:
    from halfbridge.testkit.own_topics import OwnTopics
    from halfbridge.testkit.stack import HalfbridgeStack
    from tests.sql.databases import ProxiedDatabase

STOP_S_MAX = 60.0


def test_a_lag_that_cannot_be_asked_for_is_not_shown() -> None:
    """An error that is none of ours does not leave the last lag in the metrics for ever."""
    source = PostgresqlLog({"no_such_parameter": 1}, name="orders", table="orders")
    running: Any = SimpleNamespace(progress=Progress())
    service = LogRelayService(running, source, name="orders")
    service._lag_bytes = 5
    service.stop()  # one look, and no other
    service._watch_lag()
    assert "halfbridge_log_lag_bytes" not in [each.name for each in service.collect()]


@pytest.mark.broker
def test_a_step_that_hangs_is_told_and_not_waited_for(
    proxied_database: ProxiedDatabase,
    halfbridge_stack: HalfbridgeStack,
    halfbridge_topics: OwnTopics,
) -> None:
    """Health names the last step, and a stop ends with the same word while the COMMIT hangs."""
    proxy = proxied_database.proxy
    hung: list[str] = []

    def hang(step: str) -> None:
        if step == "claimed" and not hung:
            hung.append(step)
            proxy.blackhole()

    with closing(Orders(proxied_database)) as orders, ThreadPoolExecutor(1) as pool:
        orders.insert(1)
        relayed = Relayed(orders, halfbridge_stack, halfbridge_topics.create("orders"))
        with ExitStack() as stack:
            given = {**relayed.given, "begin_at": "snapshot"}
            relay = subscription(stack, **given, on_step=hang)
            service = LogRelayService(relay, orders.source(), name=NAME, step_s_max=0.5)
            running = pool.submit(service.run, drain_s=1.0)
            try:
                until("health tells", lambda: service.health().reason.endswith("ago: claimed"))
                assert not service.health().healthy
                service.stop()
                with pytest.raises(DrainError, match=r"its last step was .* s ago: claimed"):
                    running.result(STOP_S_MAX)
            finally:
                service.stop()
                proxy.heal()
            until("the relay has ended", lambda: "halfbridge-log-relay" not in names())
        relayed.settled()  # else what hung stays undecided, and later tests wait for it
        orders.source().drop()


def names() -> set[str]:
    """Return the names of the threads that run."""
    return {each.name for each in threads()}
