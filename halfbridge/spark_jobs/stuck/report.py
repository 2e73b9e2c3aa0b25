"""Who waits for a decision, by producer group and real topic, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  # the name PySpark users know it by

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
# Upper bounds of the histogram's bins; behind the last one it is open.
BINS: tuple[tuple[str, int], ...] = (
    ("<1m", _MINUTE_MS),
    ("<10m", 10 * _MINUTE_MS),
    ("<1h", _HOUR_MS),
    ("<6h", 6 * _HOUR_MS),
    ("<1d", _DAY_MS),
    ("<3d", 3 * _DAY_MS),
)
_REST = ">=3d"
BIN_NAMES = (*(name for name, _ in BINS), _REST)


def aged(undecided: DataFrame, now_ms: int) -> DataFrame:
    """Return undecided transactions with age_ms and bin.

    Args:
        undecided: As `state.undecided`.
        now_ms: To count from; append times beyond it are of age 0.
    """
    age = F.greatest(F.lit(now_ms) - F.col("first_ms"), F.lit(0))
    return undecided.withColumn("age_ms", age).withColumn("bin", _bin(F.col("age_ms")))


def by_group_and_topic(old: DataFrame) -> DataFrame:
    """Return one row a producer group and real topic of what `aged` returns.

    Returns:
        producer_group, real_topic string; transactions, messages, oldest_ms, checks_max long; and
        a long for each of BIN_NAMES. A transaction with several real topics counts for that of
        its first message.
    """
    bins = [F.count_if(F.col("bin") == name).alias(name) for name in BIN_NAMES]
    return old.groupBy("producer_group", "real_topic").agg(
        F.count(F.lit(1)).alias("transactions"),
        F.sum(F.col("index_last") + 1).alias("messages"),
        F.max("age_ms").alias("oldest_ms"),
        F.max("checks").cast("long").alias("checks_max"),
        *bins,
    )


def oldest(old: DataFrame, count: int) -> DataFrame:
    """Return the oldest of what `aged` returns, with what one needs to look for them."""
    return (
        old.orderBy(F.col("age_ms").desc(), "transaction_id")
        .limit(count)
        .select(
            "transaction_id",
            "resume_count",
            "producer_group",
            "real_topic",
            "age_ms",
            "checks",
            "pair",
            "half_offset",
            F.col("first_ms").alias("first_append_ms"),
        )
    )


def make_report(
    groups: Sequence[Mapping[str, Any]],
    top: Sequence[Mapping[str, Any]],
    *,
    older_than_ms: int,
    now_ms: int,
    undecided: int,
) -> dict[str, Any]:
    """Return the report, one JSON object."""
    return {
        "stuck": sum(each["transactions"] for each in groups),
        "undecided": undecided,
        "older_than_ms": older_than_ms,
        "now_ms": now_ms,
        "groups": sorted(
            (
                {
                    **{name: each[name] for name in each if name not in BIN_NAMES},
                    "ages": {name: each[name] for name in BIN_NAMES},
                }
                for each in groups
            ),
            key=lambda each: (-each["oldest_ms"], each["producer_group"], each["real_topic"]),
        ),
        "oldest": list(top),
    }


def text_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report for people; the verdict last."""
    for each in report["groups"]:
        ages = ", ".join(f"{count:,} {name}" for name, count in each["ages"].items() if count)
        yield (
            f"{each['producer_group']} -> {each['real_topic']}: {each['transactions']:,}"
            f" transactions, {each['messages']:,} messages, oldest {_age(each['oldest_ms'])},"
            f" at most {each['checks_max']} checks answered; {ages}"
        )
    for each in report["oldest"]:
        yield (
            f"  {each['transaction_id']}  {_age(each['age_ms'])}  {each['producer_group']}"
            f" -> {each['real_topic']}  half [{each['pair']}]@{each['half_offset']}"
        )
    limit = _age(report["older_than_ms"])
    yield f"{report['stuck']:,} of {report['undecided']:,} undecided are older than {limit}"


def _bin(age: Column) -> Column:
    chain = F.when(age < BINS[0][1], BINS[0][0])
    for name, below_ms in BINS[1:]:
        chain = chain.when(age < below_ms, name)
    return chain.otherwise(_REST)


def _age(age_ms: int) -> str:
    for name, unit_ms in (("d", _DAY_MS), ("h", _HOUR_MS), ("m", _MINUTE_MS)):
        if age_ms >= unit_ms:
            return f"{age_ms / unit_ms:.1f} {name}"
    return f"{age_ms / 1000:.1f} s"
