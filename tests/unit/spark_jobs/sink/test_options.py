"""The options of the sink: named as Spark users expect, refused with what to do."""

from __future__ import annotations

import pickle

import pytest

from halfbridge.spark_jobs.sink.errors import SinkOptionError
from halfbridge.spark_jobs.sink.options import AGE_MS_MAX, IMMUNITY_MS, parse_options

LEAST = {"kafka.bootstrap.servers": "k:9092", "app.id": "feed"}


def test_the_least_that_is_needed() -> None:
    """Everything else has a default; the producer group follows from the app."""
    options = parse_options(LEAST)
    assert (options.app_id, options.bootstrap_servers) == ("feed", "k:9092")
    assert options.producer_group == "spark-feed"
    assert (options.topic, options.batch_id, options.prefix) == (None, None, "")
    assert (options.immunity_ms, options.age_ms_max) == (IMMUNITY_MS, AGE_MS_MAX)


def test_names_are_taken_in_any_case_and_sparks_own_are_let_pass() -> None:
    """Spark lower-cases names, and adds the checkpoint's."""
    options = parse_options(
        {
            **LEAST,
            "Topic": "orders",
            "checkpointLocation": "/c",
            "queryName": "orders",
            "on.mismatch": "Keep-First",
            "fail.on.refused": "true",
            "halfbridge.prefix": "eu.",
            "producer.group": "g",
            "batch.id": "20261121",
            "first.batch": "17",
            "check.immunity.ms": "5000",
            "kafka.security.protocol": "SSL",
        }
    )
    assert (options.topic, options.prefix, options.producer_group) == ("orders", "eu.", "g")
    assert (options.batch_id, options.first_batch, options.immunity_ms) == (20261121, 17, 5_000)
    assert (options.checkpoint, options.keeps_first, options.fails_on_refused) == ("/c", True, True)
    assert options.kafka == {"security.protocol": "SSL"}
    assert options.names.half.startswith("eu.")


def test_options_travel_to_executors_and_hide_passwords() -> None:
    """Pickled; a log that shows them does not show Kafka properties."""
    options = parse_options({**LEAST, "kafka.sasl.password": "secret"})
    assert pickle.loads(pickle.dumps(options)) == options
    assert "secret" not in repr(options)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"app.id": ""}, r"needs the option app\.id"),
        ({"app.id": "a b"}, r"option app\.id is 'a b'"),
        ({"kafka.bootstrap.servers": ""}, r"needs the option kafka\.bootstrap\.servers"),
        ({"on.mismatch": "first"}, r"on\.mismatch is 'first'; allowed: fail or keep-first"),
        ({"fail.on.refused": "1"}, r"fail\.on\.refused is '1'; allowed: false or true"),
        ({"app_id": "x"}, r"no option app_id; did you mean app\.id"),
        ({"zzz": "x"}, "no option zzz; known: "),
        ({"kafka.acks": "1"}, r"kafka\.acks cannot be set: a half message must be durable"),
        ({"kafka.sasl.jaas.config": "x"}, r"use kafka\.sasl\.username"),
        ({"check.immunity.ms": "-1"}, "a whole number from 0 to 129600000"),
        ({"check.immunity.ms": "129600001"}, "a whole number from"),
        ({"batch.age.max.ms": "1000"}, "must not be less than"),
        ({"transaction.messages.max": "1001"}, "from 1 to 1000"),
        ({"batch.id": "yesterday"}, "larger than that of any earlier write"),
        ({"batch.id": str(1 << 63)}, "larger than that of any earlier write"),
        ({"halfbridge.prefix": "a/b"}, r"option halfbridge\.prefix"),
        ({"producer.group": "a b"}, r"option producer\.group"),
        ({"producer.group": "RMQ_SYS_TRANS"}, r"option producer\.group"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(change: dict[str, str], text: str) -> None:
    """One line, which names the option."""
    with pytest.raises(SinkOptionError, match=text):
        parse_options({**LEAST, **change})
