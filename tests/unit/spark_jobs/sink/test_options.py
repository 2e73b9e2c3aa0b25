"""The options of the sink: named as Spark users expect, refused with what to do."""

import pickle

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from halfbridge.kafka import errors as bridge
from halfbridge.kafka.errors import Code, KafkaFailure
from halfbridge.serde.manifest import ManifestAttempt
from halfbridge.spark_jobs.sink.attempt import AttemptReport
from halfbridge.spark_jobs.sink.datasource import BatchWriter, StreamWriter, TxnHalf
from halfbridge.spark_jobs.sink.errors import (
    AttemptGivenUpError,
    CommitInDoubtError,
    RowError,
    SendError,
    SinkError,
    SinkOptionError,
    SinkSetupError,
    failing_as,
)
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


# --- what the driver makes of what Spark gives it at the end of a batch --------------------

_BATCH = 7


def _report(batch_id: int) -> AttemptReport:
    return AttemptReport(batch_id, ManifestAttempt("attempt", ()), 0, 0, -1, "query")


@pytest.mark.parametrize(
    "messages",
    [[_report(_BATCH), None], [None], [_report(_BATCH), _report(_BATCH - 1)]],
    ids=["one without", "none at all", "another batch"],
)
def test_a_batch_is_not_published_without_the_report_of_each_task(
    messages: list[AttemptReport | None],
) -> None:
    """The rows of a task that is left out would be lost, and nobody would be told."""
    options = parse_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "app.id": "app",
            "topic": "orders",
            "batch.id": str(_BATCH),
        }
    )
    with pytest.raises(SinkError, match=f"commits batch {_BATCH} with"):
        StreamWriter(options).commit([*messages], _BATCH)
    with pytest.raises(SinkError, match=f"commits batch {_BATCH} with"):
        BatchWriter(options).commit([*messages])


def test_numbers_of_batches_are_refused_where_they_mean_nothing() -> None:
    """A stream has Spark's own, in which a gap tells something; those of writes may be any."""
    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(SinkOptionError, match=r"batch\.id is of batch writes"):
        TxnHalf({"batch.id": "7"}).streamWriter(schema, overwrite=False)
    with pytest.raises(SinkOptionError, match=r"first\.batch is of streams"):
        TxnHalf({"batch.id": "7", "first.batch": "3"}).writer(schema, overwrite=False)
    with pytest.raises(SinkOptionError, match=r"on\.mismatch is of streams"):
        TxnHalf({"batch.id": "7", "on.mismatch": "fail"}).writer(schema, overwrite=False)


# --- errors of the sink say who must act, by the tree of the client's errors too -----------

REFUSED = bridge.ConfigError(
    field="kafka", value="no such property", origin="Kafka client", allowed="properties"
)


@pytest.mark.parametrize(
    ("error", "acts"),
    [
        (SinkOptionError, bridge.ConfigError),
        (SinkOptionError, ValueError),
        (SinkSetupError, bridge.TopicSetupError),
        (RowError, bridge.InvalidMessageError),
        (RowError, ValueError),
        (SendError, bridge.RetriableError),
        (CommitInDoubtError, bridge.OutcomeUnknownError),
        (AttemptGivenUpError, bridge.RetriableError),
    ],
)
def test_who_must_act_is_told_by_the_clients_tree(
    error: type[SinkError], acts: type[Exception]
) -> None:
    """Code that knows the client's errors knows what to do; the text is kept, pickled too."""
    raised = error("the text")
    assert isinstance(raised, acts)
    assert isinstance(raised, bridge.BridgeError)
    assert (str(raised), str(pickle.loads(pickle.dumps(raised)))) == ("the text", "the text")


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        (KafkaFailure(Code.TIMED_OUT, "too late"), SendError, "asking: _TIMED_OUT: too late"),
        (bridge.RetriableError("no answer"), SendError, "asking: no answer"),
        (BufferError("full"), SendError, "asking: full"),
        (bridge.TopicSetupError("no topic half"), SinkSetupError, "no topic half"),
        (bridge.InvalidMessageError("no", field="topic"), RowError, "no"),
        (REFUSED, SinkOptionError, "a kafka. option is refused: no such property"),
        (CommitInDoubtError("as it is"), CommitInDoubtError, "as it is"),
    ],
)
def test_failures_become_errors_of_the_sink(
    failure: Exception, error: type[SinkError], text: str
) -> None:
    """What tells by itself who must act keeps telling it; the rest is as the caller says."""
    with pytest.raises(SinkError) as told, failing_as(SendError, "asking"):
        raise failure
    assert type(told.value) is error
    assert str(told.value) == text
