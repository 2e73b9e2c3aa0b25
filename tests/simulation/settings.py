"""Small limits, so that a short run comes to all of them, and the installation's topics."""

from __future__ import annotations

from dataclasses import replace

from halfbridge.checker.sizes import Sizes
from halfbridge.serde.topics import TopicNames
from tests.ledger_log import SETTINGS

NAMES = TopicNames()
# The model knows no size that a topic refuses.
SIZES = Sizes(lambda _topic: None)
PARTITIONS = 2
GROUPS = ("orders", "billing")
REAL_TOPICS = {"alpha": 2, "beta": 1, "forbidden": 1}
TOPICS = {
    NAMES.half: PARTITIONS,
    NAMES.op: PARTITIONS,
    NAMES.dead: 1,
    **{NAMES.check(group): 1 for group in GROUPS},
    **REAL_TOPICS,
}
BEGIN_MS = 1_700_000_000_000

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
IDLE_COMMIT_S = 0.5
KAFKA_TXN_TIMEOUT_MS = 5_000
SESSION_MS = 3_000
# A request that timed out reaches its broker within so long.
LATE_MS = 3_000


class BrokenPromiseError(AssertionError):
    """A promise was broken."""
