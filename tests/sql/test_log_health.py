"""What a log subscription says of itself while it runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from halfbridge.sql.log_subscription.postgresql import PostgresqlLog
from halfbridge.sql.log_subscription.service import LogRelayService
from halfbridge.sql.log_subscription.subscription import Progress


def test_a_lag_that_cannot_be_asked_for_is_not_shown() -> None:
    """An error that is none of ours does not leave the last lag in the metrics for ever."""
    source = PostgresqlLog({"no_such_parameter": 1}, name="orders", table="orders")
    running: Any = SimpleNamespace(progress=Progress())
    service = LogRelayService(running, source, name="orders")
    service._lag_bytes = 5
    service.stop()  # one look, and no other
    service._watch_lag()
    assert "halfbridge_log_lag_bytes" not in [each.name for each in service.collect()]
