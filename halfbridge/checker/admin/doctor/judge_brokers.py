"""Findings about the settings of brokers, which must go with the daemon's. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from halfbridge.checker.admin.doctor.codes import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halfbridge.checker.admin.doctor.facts import Facts
    from halfbridge.checker.config import CheckerConfig

# Kafka's own default; with less, a daemon that is stopped over a holiday has no offsets any more.
OFFSETS_RETENTION_MIN = 7 * 24 * 60


def judge_brokers(facts: Facts, config: CheckerConfig) -> Iterator[Finding]:
    """Yield what does not go with the daemon's settings, and brokers of other releases."""
    for broker, settings in sorted(facts.broker_settings.items()):
        yield from _limits(broker, settings, config)
    kinds = Counter(frozenset(settings) for settings in facts.broker_settings.values())
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        others = sorted(
            broker for broker, told in facts.broker_settings.items() if frozenset(told) != usual
        )
        what = (
            f"brokers {', '.join(map(str, others))} know other settings than the rest, so they are"
            " of another release; finish the upgrade (4.2.0 beside older ones: KAFKA-20322)"
        )
        mend = f"kafka-broker-api-versions.sh --bootstrap-server {config.bootstrap_servers}"
        yield finding("broker-versions", what, mend)


def _limits(broker: int, settings: Mapping[str, str], config: CheckerConfig) -> Iterator[Finding]:
    txn_ms = _number(settings, "transaction.max.timeout.ms")
    if txn_ms is not None and config.kafka_txn_timeout_ms > txn_ms:
        what = (
            f"broker {broker}: transaction.max.timeout.ms is {txn_ms}, less than"
            f" kafka_txn_timeout_ms, which is {config.kafka_txn_timeout_ms}"
        )
        yield finding("kafka-txn-timeout", what, f"export HALFBRIDGE_KAFKA_TXN_TIMEOUT_MS={txn_ms}")
    least_ms = _number(settings, "group.min.session.timeout.ms")
    most_ms = _number(settings, "group.max.session.timeout.ms")
    for bound, word, is_wrong in (
        (least_ms, "min", least_ms is not None and config.session_timeout_ms < least_ms),
        (most_ms, "max", most_ms is not None and config.session_timeout_ms > most_ms),
    ):
        if is_wrong:
            what = (
                f"broker {broker}: group.{word}.session.timeout.ms is {bound}, and"
                f" session_timeout_ms is {config.session_timeout_ms}"
            )
            yield finding("session-timeout", what, f"export HALFBRIDGE_SESSION_TIMEOUT_MS={bound}")
    minutes = _number(settings, "offsets.retention.minutes")
    if minutes is not None and minutes < OFFSETS_RETENTION_MIN:
        what = (
            f"broker {broker}: offsets.retention.minutes is {minutes}: the partitions of a daemon"
            " that is stopped for longer need `checker init`; change it on each broker, and restart"
        )
        line = f"offsets.retention.minutes={OFFSETS_RETENTION_MIN}"
        yield finding("offsets-retention", what, f"echo {line} >> config/server.properties")


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name, "")
    return int(text) if text.isdecimal() else None
