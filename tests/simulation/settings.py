"""Small limits, so that a short run reaches all of them, and the installation's topics."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.core.settings import LedgerSettings
from halfbridge.checker.policy import Policy
from halfbridge.kafka.ports import NewTopic
from halfbridge.serde.delivery import Delivery
from halfbridge.serde.topics import TopicNames
from tests.ledger_log import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = TopicNames()
PARTITIONS = 2
GROUPS = ("orders", "billing")
REAL_TOPICS = {"alpha": 2, "beta": 1, "gamma": 1, "forbidden": 1}
# Where a run has topics that refuse: larger messages, timestamps ahead of its broker's clock, and
# everything, for it is not there yet, or rights are taken away.
SMALL, PUNCTUAL, LATER = "beta", "alpha", "gamma"
SMALL_BYTES = 450
AHEAD_MS = 500
TOPICS = {
    NAMES.half: PARTITIONS,
    NAMES.op: PARTITIONS,
    NAMES.dead: 1,
    NAMES.settings: 1,
    **{NAMES.check(group): 1 for group in GROUPS},
    **REAL_TOPICS,
}
_STAMPED = {"message.timestamp.type": "LogAppendTime"}
ALLOWED = ("alpha", "beta", "gamma")
POLICY = Policy(NAMES, dict.fromkeys(GROUPS, re.compile("|".join(ALLOWED))))

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
# Transactional producers of a worker.
PRODUCERS = (2, 3, 1)
SESSION_MS = 3_000
SEND_TIMEOUT_MS = 3_000
DECISION_TIMEOUT_MS = 3_000
# A request that timed out reaches its broker within so long.
LATE_MS = 3_000


class Profile(NamedTuple):
    """What a run is like all along.

    Attributes:
        reads: How many of the records that are there one fetch brings a worker.
        batches: Records in one kafka_txn, of a worker's life.
        worker_steps: How often tasks of a worker go on before others do.
        workers: Slots.
        background_records: Of so many records a kafka_txn commits in the background.
        moves: Chance that a copy is slow and a worker leaves meanwhile, in thousandths.
        late_ends: Chance that the end of a kafka_txn is repeated and comes late too, in
            thousandths (KAFKA-17754).
        kafka_txn_timeout_ms: Of the workers.
        refuses: Real topics refuse records, and one is made only later.
        topic_gone_ms: For how long a missing topic is waited for.
        deaf: The chance that the checkers of a group hang, in thousandths.
        ledger: Limits.
    """

    reads: tuple[int, ...] = (1_000, 1_000, 1, 1, 3)
    batches: tuple[int, ...] = (1_000, 1_000, 1, 4)
    worker_steps: tuple[int, ...] = (1, 2, 4, 8)
    workers: int = 2
    background_records: int = 3
    moves: int = 0
    late_ends: int = 0
    kafka_txn_timeout_ms: int = 5_000
    refuses: bool = False
    topic_gone_ms: int = 0
    deaf: int = 125
    ledger: LedgerSettings = LEDGER


USUAL = Profile()
# Many small kafka_txns, which records and requests come in between.
BUSY = Profile(reads=(1, 1, 3), batches=(1, 2), worker_steps=(4, 8, 16, 32), late_ends=100)
# Partitions move at each change of the group, for there are more workers.
CROWDED = Profile(
    worker_steps=(4, 8, 16, 32),
    batches=(1_000,),
    workers=3,
    background_records=1,
    moves=900,
    kafka_txn_timeout_ms=10_000,
)
# Transactions that nobody answers for become too old.
AGED = Profile(
    deaf=900,
    ledger=replace(
        LEDGER,
        transaction_age_ms_max=2_500,
        readiness_before_discard_ms=500,
        unanswered_before_discard=1,
    ),
)
# Deliveries wait for so long, and behind so many ops, that some are delivered in the end.
WAITING_LEDGER = replace(LEDGER, republish_window_records=20)
REFUSING = Profile(refuses=True, topic_gone_ms=3_000, ledger=WAITING_LEDGER)
PROFILES = (USUAL, USUAL, BUSY, BUSY, CROWDED, AGED, REFUSING)


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


def new_topics(profile: Profile) -> list[NewTopic]:
    """Return the installation's topics, and the real ones that are there at first."""
    settings = dict.fromkeys((NAMES.half, NAMES.op, NAMES.dead), _STAMPED)
    if profile.refuses:
        settings[SMALL] = {"max.message.bytes": str(SMALL_BYTES)}
        settings[PUNCTUAL] = {"message.timestamp.after.max.ms": str(AHEAD_MS)}
    return [
        NewTopic(name, count, 1, settings.get(name, {}))
        for name, count in TOPICS.items()
        if name != LATER or not profile.refuses
    ]


def daemon_config(
    profile: Profile, *, batch_records: int, producers: int, delivery: Delivery
) -> CheckerConfig:
    """Return a worker's settings, some of them below what an operator may set."""
    ledger = profile.ledger
    config = CheckerConfig(
        bootstrap_servers="memory",
        delivery=delivery.value,
        transaction_timeout_ms=ledger.transaction_timeout_ms,
        check_interval_ms=ledger.check_interval_ms,
        check_count_max=ledger.check_count_max,
        check_backoff_ms_max=ledger.check_backoff_ms_max,
        transaction_age_ms_max=ledger.transaction_age_ms_max,
        readiness_before_discard_ms=ledger.readiness_before_discard_ms,
        unanswered_before_discard=ledger.unanswered_before_discard,
        kafka_txn_timeout_ms=profile.kafka_txn_timeout_ms,
        session_timeout_ms=SESSION_MS,
        transactional_producers=producers,
        topic_gone_ms=profile.topic_gone_ms,
    )
    limits: Mapping[str, Any] = {
        "batch_records_max": batch_records,
        "republish_window_records": ledger.republish_window_records,
        # Of a worker; its ledgers share it.
        "ledger_bytes_max": PARTITIONS * ledger.ledger_bytes_max,
    }
    for name, value in limits.items():
        object.__setattr__(config, name, value)
    return config
