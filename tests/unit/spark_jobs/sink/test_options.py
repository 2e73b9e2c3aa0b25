"""The options of the sink: named as Spark users expect, refused with what to do."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from halfbridge.kafka import errors as bridge
from halfbridge.kafka.errors import Code, ConfigError, KafkaFailure
from halfbridge.serde.headers import SIGN
from halfbridge.serde.manifest import ManifestAttempt
from halfbridge.serde.records import DeadReason
from halfbridge.spark.checker import SinkChecker, SinkResponder
from halfbridge.spark_jobs.sink.attempt import AttemptReport, write_attempt
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.clients import ensure_topics
from halfbridge.spark_jobs.sink.datasource import BatchWriter, StreamWriter, TxnHalf
from halfbridge.spark_jobs.sink.errors import (
    AttemptGivenUpError,
    CommitInDoubtError,
    RowError,
    SendError,
    SinkError,
    SinkOptionError,
    SinkSetupError,
    UnknownPastError,
    failing_as,
)
from halfbridge.spark_jobs.sink.options import AGE_MS_MAX, IMMUNITY_MS, SinkOptions, parse_options
from halfbridge.spark_jobs.sink.process import SinkProcess
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.memory import MemoryStack
from tests.kit.signing import a_key, a_table, secret, write_key_file

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
    """The rows of a task that is left out would be lost without an error."""
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
def test_the_exception_class_says_who_must_act(
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
    with pytest.raises(SinkError) as caught, failing_as(SendError, "asking"):
        raise failure
    assert type(caught.value) is error
    assert str(caught.value) == text


# --- the sink signs half records and decisions, with the key file of the process that writes

GROUP = "spark-feed"
LEAST_SIGNED = {"kafka.bootstrap.servers": "memory", "app.id": "feed", "topic": "orders"}
SCHEMA = StructType([StructField("value", BinaryType())])
ROWS = [b"a", b"b", b"c"]


class Query:
    """A query that writes to an installation; each of its processes is a new one."""

    def __init__(self, stack: MemoryStack, **more: str) -> None:
        self._stack = stack
        self.options: SinkOptions = parse_options({**LEAST_SIGNED, **more})

    def process(self) -> SinkProcess:
        """Return a new process of Spark's."""
        machine = self._stack.machine
        return SinkProcess(machine.ports(machine.process("spark")))

    def attempt(self, batch: int = 0, rows: list[bytes | None] | None = None) -> AttemptReport:
        """Run a task attempt."""
        batches = [pa.record_batch([pa.array(rows or ROWS, pa.binary())], names=["value"])]
        return write_attempt(self.options, batch, iter(batches), process=self.process())

    def commit(self, report: AttemptReport) -> None:
        """Publish the batch of an attempt."""
        BatchCommitter(self.options, self.process()).commit(report.batch_id, [report])

    def run(self, batch: int = 0) -> None:
        ensure_topics(self.options, self.process().ports)
        self.commit(self.attempt(batch))


def test_a_row_larger_than_a_transaction_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topics would take it, and the daemon would make it a dead letter."""
    monkeypatch.setattr("halfbridge.spark_jobs.sink.attempt.TRANSACTION_BYTES_MAX", 1_000)
    with MemoryStack(partitions=2) as stack:
        stack.create_topic("orders")
        query = Query(stack)
        ensure_topics(query.options, query.process().ports)
        query.attempt(rows=[b"v" * 1_000, b"v" * 1_000])
        with pytest.raises(RowError, match="a row of 1001 bytes is larger than the messages of a"):
            query.attempt(rows=[b"v" * 1_001])


def test_a_refusal_is_raised_though_brokers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attempts cannot be rolled back then; the check settles them."""

    def fail(*_: object) -> NoReturn:
        raise SinkSetupError("no broker answers")

    with MemoryStack(partitions=2) as stack:
        stack.create_topic("orders")
        query = Query(stack)
        ensure_topics(query.options, query.process().ports)
        report = query.attempt(5)
        monkeypatch.setattr(SinkProcess, "decider", fail)
        with pytest.raises(UnknownPastError):
            query.commit(report)


@pytest.fixture(name="stack")
def start_stack(tmp_path: Path) -> Iterator[MemoryStack]:
    """An installation that demands signatures of all."""
    daemons = write_key_file(tmp_path / "daemon.toml", a_table())
    with MemoryStack(partitions=2, key_file=daemons) as stack:
        stack.create_topic("orders")
        yield stack


@pytest.fixture(name="keys")
def make_keys(tmp_path: Path) -> Path:
    """Return the key file of Spark's hosts: the client's (docs/how-to/sign-records.md)."""
    return write_key_file(tmp_path / "spark.toml", a_table(a_key("client"), demands=[]))


def written(stack: MemoryStack) -> list[ReadRecord]:
    """Return the half records and ops."""
    names = stack.config.names
    return stack.read_committed(names.half, names.op)


def values(stack: MemoryStack) -> list[bytes | None]:
    """Return what consumers see, sorted: the rows have no key, and so no order."""
    stack.advance(1)
    return sorted(each.value or b"" for each in stack.read_committed("orders"))


def test_where_signatures_are_demanded_the_rows_are_believed(
    stack: MemoryStack, keys: Path
) -> None:
    """Half records and decisions are signed, those of an attempt that lost too."""
    query = Query(stack, **{"key.file": str(keys)})
    ensure_topics(query.options, query.process().ports)
    lost, kept = query.attempt(), query.attempt()
    query.commit(kept)
    query.commit(lost)
    assert values(stack) == ROWS
    assert not any(SIGN in dict(each.headers) for each in stack.read_committed("orders"))
    assert all(SIGN in dict(each.headers) for each in written(stack))
    assert (stack.undecided(), stack.dead_letters()) == ([], [])


def test_without_the_option_nothing_is_signed(stack: MemoryStack) -> None:
    """Its rows are not believed where signatures are demanded: they are dead letters."""
    Query(stack).run()
    assert values(stack) == []
    assert not any(SIGN in dict(each.headers) for each in written(stack))
    assert {each.letter.reason for each in stack.dead_letters()} == {DeadReason.INVALID}


def test_the_records_of_an_attempt_that_fails_are_rolled_back(
    stack: MemoryStack, keys: Path
) -> None:
    """By a signed decision, which is believed."""
    query = Query(stack, **{"key.file": str(keys)})
    ensure_topics(query.options, query.process().ports)
    with pytest.raises(RowError):
        query.attempt(rows=[b"a", bytes(2 << 20)])
    stack.advance(1)
    assert (stack.undecided(), stack.dead_letters(), values(stack)) == ([], [], [])


def test_a_key_that_is_added_signs_the_next_batch(stack: MemoryStack, tmp_path: Path) -> None:
    """Its process and its clients live on: Spark's Python workers outlive many batches."""
    path = tmp_path / "spark.toml"
    query = Query(stack, **{"key.file": str(path)})
    process = query.process()
    query.process = lambda: process
    write_key_file(path, a_table(a_key("client", secret=secret("nobody knows it")), demands=[]))
    query.run(0)
    assert values(stack) == []
    write_key_file(path, a_table(a_key("client"), demands=[]))
    query.run(1)
    assert values(stack) == ROWS


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (None, "No such file"),
        ([a_key("daemon")], f"no key by which a client may sign for group {GROUP}"),
        ([a_key("client", groups=["bills"])], "no key by which a client may sign"),
        ([a_key("client", valid_until_ms=1)], "no key by which a client may sign"),
    ],
    ids=["no file", "another role", "another group", "ended"],
)
@pytest.mark.parametrize("demands", [[], None], ids=["nothing demanded", "demanded"])
def test_a_key_file_that_cannot_sign_is_refused_where_it_is_read(
    stack: MemoryStack, tmp_path: Path, keys: Any, text: str, *, demands: Any
) -> None:
    """On the driver before a task runs, and on an executor before a row is sent."""
    path = tmp_path / "spark.toml"
    if keys is not None:
        write_key_file(path, a_table(*keys, demands=demands))
    given = {**LEAST_SIGNED, "key.file": str(path)}
    with pytest.raises(SinkOptionError, match=rf"option key\.file is .*{gethostname()}.*{text}"):
        TxnHalf(given).streamWriter(SCHEMA, overwrite=False)
    with pytest.raises(ConfigError, match="every executor"):
        Query(stack, **{"key.file": str(path)}).attempt()
    assert written(stack) == []


def test_keys_do_not_travel(keys: Path) -> None:
    """A plan, an executor and a log get the path."""
    options = parse_options({**LEAST_SIGNED, "key.file": str(keys)})
    writer = pickle.dumps(StreamWriter(options))
    assert str(keys).encode() in writer
    for text in (writer, repr(options).encode()):
        assert secret("client").encode() not in text
        assert b"client." not in text


def test_queries_with_different_key_files_share_no_client(keys: Path) -> None:
    """A decision of one must not be signed with the key of the other."""
    signing = parse_options({**LEAST_SIGNED, "key.file": str(keys)})
    assert signing.client_key() != parse_options(LEAST_SIGNED).client_key()


def test_a_responder_signs_what_it_answers_and_decides(stack: MemoryStack, keys: Path) -> None:
    """A driver dies between its manifest and its decisions."""
    query = Query(stack, **{"key.file": str(keys), "check.immunity.ms": "0"})
    ensure_topics(query.options, query.process().ports)
    report = query.attempt()
    BatchCommitter(query.options, query.process()).record(0, [report])
    checker = SinkChecker(query.options, query.process())
    with stack.producer(GROUP, checker=checker, key_file=str(keys)):
        stack.advance(60)
    assert values(stack) == ROWS
    assert all(SIGN in dict(each.headers) for each in written(stack))


@pytest.mark.parametrize("by_variable", [True, False])
def test_a_responder_without_a_usable_key_file_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_variable: bool
) -> None:
    """The file is an argument or, as of any client, HALFBRIDGE_KEY_FILE."""
    path = str(tmp_path / "nowhere.toml")
    if by_variable:
        monkeypatch.setenv("HALFBRIDGE_KEY_FILE", path)
    given = {} if by_variable else {"key_file": path}
    with pytest.raises(SinkOptionError, match=r"option key\.file is .*No such file"):
        SinkResponder(bootstrap_servers="127.0.0.1:1", app_id="feed", **given)
