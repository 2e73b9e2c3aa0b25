"""What is known of an installation and of this machine, before anything is judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.topics import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfbridge.checker.admin.acls import Acl
    from halfbridge.checker.admin.placed import Lacking, PlacedPartition
    from halfbridge.kafka.ports import SeenTopic
    from halfbridge.serde.records import DaemonSettings
    from halfbridge.serde.signing_keys import Role


class Stall(NamedTuple):
    """A partition whose last stable offset stands below its end, and did not move.

    Attributes:
        offset: The last stable offset: the first record of the open kafka_txn.
        since_ms: Timestamp of that record; -1: it could not be read.
        transaction_id: Message transaction that the record belongs to; empty: it names none.
    """

    topic: str
    partition: int
    offset: int
    since_ms: int
    transaction_id: str


class BornClock(NamedTuple):
    """How the clock of a producer group's clients differs from the brokers'.

    Attributes:
        lag_ms: Least of (append time - born timestamp): negative where a client's clock is ahead.
        records: Half records that were looked at.
    """

    producer_group: str
    lag_ms: int
    records: int


class NotBelieved(NamedTuple):
    """Half records that are not signed as is demanded, or as will be within a day.

    Attributes:
        role: Who wrote them: clients of the group, the daemon (copies), or operators.
        records: How many of the newest ones.
        newest_ms: Append time of the last one.
        why: What is wrong with the last one.
        demanded_from_ms: First append time of a record that must be signed.
    """

    producer_group: str
    role: Role
    records: int
    newest_ms: int
    why: str
    demanded_from_ms: int


class PlainRecords(NamedTuple):
    """Records of a transaction topic that the daemon did not write.

    Attributes:
        partition, offset: Of the last one that was seen.
        records: How many of the records that were looked at.
    """

    topic: str
    partition: int
    offset: int
    records: int


class Delayed(NamedTuple):
    """Committed transactions whose delivery waits, by a real topic of theirs.

    Attributes:
        transactions: How many.
        oldest_id: The one that was committed first.
        since_ms: Append time of its COMMIT; below 0: not known.
        lacks: What of the topic cannot be written to now, by the brokers' metadata.
    """

    topic: str
    transactions: int
    oldest_id: str
    since_ms: int
    lacks: tuple[Lacking, ...]


class Connector(NamedTuple):
    """A connector of Kafka Connect that does not run, or of which a task does not.

    Attributes:
        state: As Kafka Connect names it, such as FAILED.
        tasks: State of each task, in order.
        trace: First cause of a failure, one line; empty without one.
    """

    name: str
    state: str
    tasks: tuple[str, ...]
    trace: str


class Slot(NamedTuple):
    """A logical replication slot of PostgreSQL.

    Attributes:
        is_active: A connection reads it now.
        kept_bytes: Log (WAL) that the server keeps for it; -1: not known, as for a lost slot.
        is_lost: The server has removed log that it needs.
    """

    name: str
    is_active: bool
    kept_bytes: int
    is_lost: bool


class Changes(NamedTuple):
    """What delivers the changes of a database.

    Attributes:
        connect_url: Address of Kafka Connect; empty: it was not asked.
        connect_silent: Why it did not answer; empty: it did.
        connectors: Those that do not run.
        database: Connection string for psql, without a password.
        slots: Logical slots of the database.
    """

    connect_url: str = ""
    connect_silent: str = ""
    connectors: tuple[Connector, ...] = ()
    database: str = ""
    slots: tuple[Slot, ...] = ()


class Host(NamedTuple):
    """This machine and this Python.

    Attributes:
        memory_bytes: What a process may use: of the machine, or of its control group; 0: not known.
        files_max: Files that this process may open; 0: not known.
        foreign: Module names of this project that something else answers to -> its file.
        kafka_client: Versions of confluent-kafka and of librdkafka.
    """

    memory_bytes: int = 0
    files_max: int = 0
    foreign: Mapping[str, str] = {}
    kafka_client: tuple[str, str] = ("", "")


@dataclass(slots=True, kw_only=True)
class Facts:
    """Answers; what nobody answered keeps its default, and stands in `silent`.

    Attributes:
        asked_at_ms: When, by this machine's clock.
        unreachable: Why no broker was reached; empty: one was.
        silent: Question -> why it was not answered.
        brokers: Id -> host:port.
        broker_settings: Broker's id -> its settings.
        topics: All topics that may be seen.
        report: What `topics check` found.
        daemon_lacks, client_lacks: Grants that are not there, in part.
        transactional_refusal: Why a transactional id of the daemon's was refused; empty: it was
            not.
        workers: Live members of the daemon's group.
        responders: Producer group -> live members of its check group.
        stalls: Partitions whose readers are held back.
        away: Partitions, of internal topics and of known real ones, that take no records.
        delayed: What committed transactions wait for.
        damaged: Pair -> the record that ends whoever reads it.
        plain: Transaction topics to which somebody else writes.
        clocks: Clients' clocks, by producer group.
        newest_ms: Newest append time of the half topic; -1: none.
        not_believed: Who does not sign as is demanded; empty without a key file.
        key_file_flaw: Why the key file cannot be used; empty: it can, or there is none.
        key_problems: What has to be done about the key file.
        record: Limits that the daemon published last.
        named_topics: Real topics that the policy names without a pattern, or the request.
        changes: Connectors and slots, where they were asked for.
        host: This machine.
    """

    asked_at_ms: int = 0
    unreachable: str = ""
    silent: dict[str, str] = field(default_factory=dict)
    brokers: Mapping[int, str] = field(default_factory=dict)
    broker_settings: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    topics: Mapping[str, SeenTopic] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    daemon_lacks: tuple[Acl, ...] = ()
    client_lacks: tuple[Acl, ...] = ()
    transactional_refusal: str = ""
    workers: tuple[str, ...] | None = None
    responders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stalls: tuple[Stall, ...] = ()
    away: tuple[PlacedPartition, ...] = ()
    delayed: tuple[Delayed, ...] = ()
    damaged: Mapping[int, str] = field(default_factory=dict)
    plain: tuple[PlainRecords, ...] = ()
    clocks: tuple[BornClock, ...] = ()
    newest_ms: int = -1
    not_believed: tuple[NotBelieved, ...] = ()
    key_file_flaw: str = ""
    key_problems: tuple[str, ...] = ()
    record: DaemonSettings | None = None
    named_topics: tuple[str, ...] = ()
    changes: Changes = field(default_factory=Changes)
    host: Host = field(default_factory=Host)
