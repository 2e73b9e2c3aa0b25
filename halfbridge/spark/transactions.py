"""One row for each transaction: its state, times, place and size, from the topics alone.

    from halfbridge.spark import read_transactions

    found = read_transactions(spark, bootstrap_servers="localhost:9092", topics="orders")
    found.groupBy("state").count().show()

Rows of the half topic are joined with their deliveries, dead letters and ops, and summed to one row
for each message, then for each transaction. All of that Spark does by sorts and aggregations that
spill to disk; nothing is cached, and nothing comes to the driver but what the caller collects.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from halfbridge.serde.records import DeadReason, OpKind
from halfbridge.serde.topics import TopicNames
from halfbridge.spark.frames import messages, topics_of
from halfbridge.spark_jobs.audit.facts import (
    IS_DEAD_LETTER,
    append_ms,
    born_ms,
    decoded_halves,
    decoded_ops,
    facts_of_dead_letters,
    first_append_ms,
    life_hash,
)
from halfbridge.spark_jobs.audit.matching import INCONCLUSIVE
from halfbridge.spark_jobs.audit.ruling import first_decision, is_above
from halfbridge.spark_jobs.audit.sift import DELIVERED, DISCARDED, ROLLED_BACK, UNDECIDED
from halfbridge.spark_jobs.audit.verdict import REFUSED
from halfbridge.spark_jobs.reading.decisions import claimed_age_ms, decides, signature_judge
from halfbridge.spark_jobs.reading.offsets import EARLIEST, parse_position
from halfbridge.spark_jobs.reading.topics import Topics, read_ranges, read_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from halfbridge.spark_jobs.reading.decisions import SignatureJudge

# Decided, and neither delivered nor refused: the daemon has not applied the decision yet, or the
# topics that are read do not have all of its messages.
COMMITTED = "committed"
LIFE = ("transaction_id", "resume_count", "producer_group", "pair")
_MESSAGE = ("transaction_id", "message_index")


def read_transactions(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    topics: str | Iterable[str] = (),
    prefix: str = "",
    kafka_options: Mapping[str, str] | None = None,
    key_file: str | Path | None = None,
    start: str = "earliest",
) -> DataFrame:
    """Return one row for each transaction that has a half message in the half topic.

    Args:
        spark: Any session with the Kafka connector.
        bootstrap_servers: The cluster.
        topics: Names of the real topics in which deliveries are looked for, or one name. What went
            to other topics is not known to be delivered: its state is `committed`.
        prefix: Prefix of the installation's internal topics.
        kafka_options: Properties of Spark's (Java) Kafka client, such as security.protocol.
        key_file: The daemon's keys: records are judged as the daemon does, by Python on the
            executors. None: every record that can be read is believed.
        start: `earliest`, or an append time (`2026-11-01T12:00Z`, `-24h`) at which the reading of
            all topics begins. A transaction that is older is there with its later records only.

    Returns:
        Rows in no order, unique by (transaction_id, resume_count); the other columns are
        producer_group, state, half_timestamp, decided_timestamp, delivered_timestamp,
        half_partition, half_offset, message_count, real_topic, first_key, reason, check_count.

    Raises:
        ValueError: an argument is wrong; the caller corrects it. An action, which reads the topics,
            raises Spark's errors.
        KeyFileError: the key file cannot be used; its owner corrects it.
    """
    names = TopicNames(prefix)
    position = parse_position(start)
    if position.offsets not in ("", EARLIEST.offsets):
        raise ValueError(
            "start must be earliest or a time such as -24h: offsets of one topic fit no other,"
            " and nothing begins at latest"
        )
    read = partial(
        read_topics,
        spark,
        bootstrap_servers=bootstrap_servers,
        kafka=kafka_options,
        start=position,
    )
    return transactions(
        halves=read(Topics.of(names.half)),
        ops=read(Topics.of(names.op)),
        letters=read(Topics.of(names.dead)),
        reals=read(topics_of(topics)) if topics else read_ranges(spark, {}, {}),
        judge=signature_judge(None if key_file is None else Path(key_file), names),
    )


def transactions(
    *,
    halves: DataFrame,
    ops: DataFrame,
    letters: DataFrame,
    reals: DataFrame,
    judge: SignatureJudge | None = None,
) -> DataFrame:
    """Return `read_transactions` of rows of the four kinds of topics, in Kafka's columns."""
    seen = (
        _rows(halves, judge)
        .join(_letters(letters, judge), [*_MESSAGE, "life_hash"], how="left")
        .join(_arrivals(reals), list(_MESSAGE), how="left")
    )
    decided = _lives(_messages(seen, _decisions(ops, judge)))
    kind = F.col("kind")
    state = (
        F.when(kind.isNull(), UNDECIDED)
        .when(kind == OpKind.ROLLBACK.value, ROLLED_BACK)
        .when(kind == OpKind.DISCARD.value, DISCARDED)
        .when(F.col("is_delivered"), DELIVERED)
        .when(F.col("is_settled"), REFUSED)
        .otherwise(COMMITTED)
    )
    return decided.withColumn("state", state).select(
        "transaction_id",
        "resume_count",
        "producer_group",
        "state",
        F.timestamp_millis("first_ms").alias("half_timestamp"),
        "decided_timestamp",
        F.when(F.col("state") == DELIVERED, F.col("arrived")).alias("delivered_timestamp"),
        F.col("pair").alias("half_partition"),
        "half_offset",
        "message_count",
        "real_topic",
        "first_key",
        F.coalesce("dead_reason", F.nullif("op_reason", F.lit(""))).alias("reason"),
        "check_count",
    )


def _rows(halves: DataFrame, judge: SignatureJudge | None) -> DataFrame:
    """Return one row for each half record that can be read, its times in milliseconds."""
    meta, ms = F.col("meta"), F.unix_millis("timestamp")
    is_copy = meta["origin_offset"] >= 0
    claimed_ms = meta["first_append_timestamp"]
    # To be shown; of a record without an append time its writer's.
    first_ms = F.when(is_copy & (claimed_ms >= 0), F.least(claimed_ms, ms)).otherwise(ms)
    rows = decoded_halves(halves, judge).where(F.col("unread").isNull())
    return rows.select(
        meta["transaction_id"].alias("transaction_id"),
        meta["resume_count"].alias("resume_count"),
        meta["producer_group"].alias("producer_group"),
        F.col("partition").alias("pair"),
        life_hash(F.col("partition"), meta["resume_count"], meta["producer_group"]).alias(
            "life_hash"
        ),
        meta["message_index"].alias("message_index"),
        meta["real_topic"].alias("real_topic"),
        "key",
        F.col("offset").alias("half_offset"),
        F.when(is_copy, meta["origin_offset"]).otherwise(F.col("offset")).alias("origin_offset"),
        first_ms.alias("first_ms"),
        F.when(~is_copy, F.col("offset")).alias("original_at"),
        F.when(~is_copy, append_ms()).alias("original_ms"),
        F.when(is_copy, first_append_ms(meta)).alias("copied_ms"),
        # An original that claims to have been checked is forged or broken: it was not.
        F.when(is_copy, meta["check_times"]).otherwise(0).alias("checks"),
    )


def _messages(rows: DataFrame, decisions: DataFrame) -> DataFrame:
    """Return one row for each message, with the decision of its transaction.

    Of several records of a message the first original counts, as in the daemon.
    """
    life = Window.partitionBy(*LIFE)
    is_original = F.col("original_at").isNotNull()
    original = F.min(F.when(is_original, F.struct("original_at", "original_ms"))).over(life)
    born = born_ms(original["original_ms"], F.min("copied_ms").over(life))
    record = F.struct("origin_offset", "half_offset", "real_topic", "key")
    return (
        rows.withColumn("born_ms", born)
        .join(decisions, list(LIFE), how="left")
        .groupBy(*LIFE, "message_index")
        .agg(
            first_decision("op_half_offset", "decided_timestamp", "op_reason").alias("decision"),
            F.min(record).alias("record"),
            F.min("first_ms").alias("first_ms"),
            F.min("half_offset").alias("first_offset"),
            F.max("checks").alias("checks"),
            *(
                F.first(name).alias(name)
                for name in ("arrived", "refusal", "invalid", "late_offset")
            ),
        )
        .select("*", "decision.*", "record.origin_offset", "record.real_topic", "record.key")
    )


def _lives(messages: DataFrame) -> DataFrame:
    """Return one row for each transaction.

    Columns: LIFE and the decision's; first_ms and half_offset, the lowest of its records;
    check_count; message_count; real_topic and first_key of its first message; arrived (when the
    last message was delivered); dead_reason (of a dead letter of a message that was not delivered);
    is_delivered (all messages were); is_settled (each was, or has such a letter).
    """
    # A dead letter of the message's own record. One of a record after it is about a duplicate.
    is_own = F.col("late_offset") <= F.col("origin_offset")
    is_late = F.coalesce(is_above() | is_own, F.lit(col=False))
    # The record of a late message in a real topic is another life's, which redelivered it.
    has_arrived = F.col("arrived").isNotNull() & ~is_late
    dead_reason = F.coalesce(
        "refusal",
        F.when(is_late & F.col("late_offset").isNotNull(), DeadReason.LATE.value),
        F.when(~has_arrived, F.col("invalid")),
    )
    is_refused = F.col("dead_reason").isNotNull()
    decision = ("kind", "decided_timestamp", "op_reason")
    return (
        messages.withColumns({"has_arrived": has_arrived, "dead_reason": dead_reason})
        .groupBy(*LIFE)
        .agg(
            *(F.first(name).alias(name) for name in decision),
            F.min("first_ms").alias("first_ms"),
            F.min("first_offset").alias("half_offset"),
            F.max("checks").alias("check_count"),
            F.count("*").cast("int").alias("message_count"),
            F.min_by("real_topic", "message_index").alias("real_topic"),
            F.min_by("key", "message_index").alias("first_key"),
            F.max("arrived").alias("arrived"),
            F.min("dead_reason").alias("dead_reason"),
            F.bool_and(F.col("has_arrived") & ~is_refused).alias("is_delivered"),
            F.bool_and(F.col("has_arrived") | is_refused).alias("is_settled"),
        )
    )


def _arrivals(reals: DataFrame) -> DataFrame:
    """Return when each message was delivered first: transaction_id, message_index, arrived."""
    return messages(reals).groupBy(*_MESSAGE).agg(F.min("timestamp").alias("arrived"))


def _letters(letters: DataFrame, judge: SignatureJudge | None) -> DataFrame:
    """Return what the dead letters say about each message.

    Columns: _MESSAGE, life_hash; refusal: the reason of one whose reason is not of INCONCLUSIVE;
    invalid: INVALID if there is one; late_offset: the lowest half offset that is LATE.
    """
    facts = facts_of_dead_letters(letters, judge).where(F.col("record_type") == IS_DEAD_LETTER)
    reason = F.col("kind")
    return facts.groupBy(*_MESSAGE, "life_hash").agg(
        F.min(F.when(~reason.isin(*INCONCLUSIVE), reason)).alias("refusal"),
        F.min(F.when(reason == DeadReason.INVALID.value, reason)).alias("invalid"),
        F.min(F.when(reason == DeadReason.LATE.value, F.col("origin_offset"))).alias("late_offset"),
    )


def _decisions(ops: DataFrame, judge: SignatureJudge | None) -> DataFrame:
    """Return the deciding ops: LIFE, op_half_offset, and the columns of `first_decision`."""
    op = F.col("op")
    is_decision = F.col("unread").isNull() & decides(op["kind"], op["source"])
    return (
        decoded_ops(ops, judge)
        .where(is_decision)
        .select(
            op["transaction_id"].alias("transaction_id"),
            op["resume_count"].alias("resume_count"),
            op["producer_group"].alias("producer_group"),
            F.col("partition").alias("pair"),
            F.col("offset").alias("op_offset"),
            op["kind"].alias("kind"),
            op["half_offset"].alias("op_half_offset"),
            claimed_age_ms(op["kind"], op["source"], op["age_ms"]).alias("age_ms"),
            append_ms().alias("op_append_ms"),
            F.col("timestamp").alias("decided_timestamp"),
            op["reason"].alias("op_reason"),
        )
    )
