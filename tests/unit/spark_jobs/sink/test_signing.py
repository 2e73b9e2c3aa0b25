"""The sink signs half records and decisions, with the key file of the process that writes."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from halfbridge.kafka.errors import ConfigError
from halfbridge.serde.headers import SIGN
from halfbridge.serde.records import DeadReason
from halfbridge.spark.checker import SinkChecker, SinkResponder
from halfbridge.spark_jobs.sink.attempt import AttemptReport, write_attempt
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.clients import ensure_topics
from halfbridge.spark_jobs.sink.datasource import StreamWriter, TxnHalf
from halfbridge.spark_jobs.sink.errors import RowError, SinkOptionError
from halfbridge.spark_jobs.sink.options import SinkOptions, parse_options
from halfbridge.spark_jobs.sink.process import SinkProcess
from halfbridge.testkit.history import ReadRecord
from halfbridge.testkit.memory import MemoryStack
from tests.kit.signing import a_key, a_table, secret, write_key_file

GROUP = "spark-feed"
LEAST = {"kafka.bootstrap.servers": "memory", "app.id": "feed", "topic": "orders"}
SCHEMA = StructType([StructField("value", BinaryType())])
ROWS = [b"a", b"b", b"c"]


class Query:
    """A query that writes to an installation; each of its processes is a new one."""

    def __init__(self, stack: MemoryStack, **more: str) -> None:
        self._stack = stack
        self.options: SinkOptions = parse_options({**LEAST, **more})

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
    query.process = lambda: process  # type: ignore[method-assign]
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
    given = {**LEAST, "key.file": str(path)}
    with pytest.raises(SinkOptionError, match=rf"option key\.file is .*{gethostname()}.*{text}"):
        TxnHalf(given).streamWriter(SCHEMA, overwrite=False)
    with pytest.raises(ConfigError, match="every executor"):
        Query(stack, **{"key.file": str(path)}).attempt()
    assert written(stack) == []


def test_keys_do_not_travel(keys: Path) -> None:
    """A plan, an executor and a log get the path."""
    options = parse_options({**LEAST, "key.file": str(keys)})
    writer = pickle.dumps(StreamWriter(options))
    assert str(keys).encode() in writer
    for text in (writer, repr(options).encode()):
        assert secret("client").encode() not in text
        assert b"client." not in text


def test_queries_with_different_key_files_share_no_client(keys: Path) -> None:
    """A decision of one must not be signed with the key of the other."""
    signing = parse_options({**LEAST, "key.file": str(keys)})
    assert signing.client_key() != parse_options(LEAST).client_key()


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
