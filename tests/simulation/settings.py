"""Small limits, so that a short run comes to all of them, and the installation's topics."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.ports import NewTopic
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.policy import Policy
from halfbridge.serde.topics import TopicNames
from tests.ledger_log import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = TopicNames()
PARTITIONS = 2
GROUPS = ("orders", "billing")
REAL_TOPICS = {"alpha": 2, "beta": 1, "forbidden": 1}
TOPICS = {
    NAMES.half: PARTITIONS,
    NAMES.op: PARTITIONS,
    NAMES.dead: 1,
    NAMES.settings: 1,
    **{NAMES.check(group): 1 for group in GROUPS},
    **REAL_TOPICS,
}
_STAMPED = {"message.timestamp.type": "LogAppendTime"}
POLICY = Policy(NAMES, dict.fromkeys(GROUPS, re.compile("alpha|beta")))

LEDGER = replace(
    SETTINGS,
    transaction_timeout_ms=500,
    check_interval_ms=800,
    check_count_max=3,
    check_backoff_ms_max=2_000,
    transaction_age_ms_max=8_000,
    readiness_before_discard_ms=2_000,
    republish_window_records=2,
    ledger_bytes_max=1_500,
)
BATCH_BYTES = 1 << 20
# Records in one kafka_txn, of a worker's life.
BATCHES = (1_000, 1_000, 1, 4)
# Of so many records a kafka_txn commits in the background.
BACKGROUND_RECORDS = 3
KAFKA_TXN_TIMEOUT_MS = 5_000
SESSION_MS = 3_000
SEND_TIMEOUT_MS = 3_000
DECISION_TIMEOUT_MS = 3_000
# A request that timed out reaches its broker within so long.
LATE_MS = 3_000


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


def new_topics() -> list[NewTopic]:
    """Return the installation's topics, and the real ones."""
    mine = {NAMES.half, NAMES.op, NAMES.dead}
    return [
        NewTopic(name, count, 1, _STAMPED if name in mine else {}) for name, count in TOPICS.items()
    ]


def daemon_config(*, batch_records: int, producers: int) -> CheckerConfig:
    """Return a worker's settings, some of them below what an operator may set."""
    config = CheckerConfig(
        bootstrap_servers="memory",
        transaction_timeout_ms=LEDGER.transaction_timeout_ms,
        check_interval_ms=LEDGER.check_interval_ms,
        check_count_max=LEDGER.check_count_max,
        check_backoff_ms_max=LEDGER.check_backoff_ms_max,
        transaction_age_ms_max=LEDGER.transaction_age_ms_max,
        readiness_before_discard_ms=LEDGER.readiness_before_discard_ms,
        unanswered_before_discard=LEDGER.unanswered_before_discard,
        kafka_txn_timeout_ms=KAFKA_TXN_TIMEOUT_MS,
        session_timeout_ms=SESSION_MS,
        transactional_producers=producers,
        topic_gone_ms=0,
    )
    limits: Mapping[str, Any] = {
        "batch_records_max": batch_records,
        "republish_window_records": LEDGER.republish_window_records,
        # Of a worker; its ledgers share it.
        "ledger_bytes_max": PARTITIONS * LEDGER.ledger_bytes_max,
    }
    for name, value in limits.items():
        object.__setattr__(config, name, value)
    return config
