"""The facts that doctor collects, its findings and their codes, and the file for a report.

The report leaves out payloads and secrets.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import platform
import resource
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from halfbridge.checker.admin.topics import Report
from halfbridge.kafka.adapter import client_versions
from halfbridge.serde.settings import to_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfbridge.checker.admin.acls import Acl
    from halfbridge.checker.admin.real_topics import PlacedPartition
    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.deferred import Lack
    from halfbridge.kafka.ports import SeenTopic
    from halfbridge.serde.records import DaemonSettings
    from halfbridge.serde.signing_keys import Role


class Stall(NamedTuple):
    """A partition whose last stable offset is below its end, and did not move.

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
        why: Why the last one is refused.
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
        partition, offset: Position of the last one.
        records: How many of the records that were read.
    """

    topic: str
    partition: int
    offset: int
    records: int


class Delayed(NamedTuple):
    """Committed transactions whose delivery waits, by a real topic of theirs.

    Attributes:
        oldest_id: The one that was committed first.
        since_ms: Append time of its COMMIT; below 0: not known.
        lacks: What of the topic cannot be written to now, by the brokers' metadata.
    """

    topic: str
    transactions: int
    oldest_id: str
    since_ms: int
    lacks: tuple[Lack, ...]


class Connector(NamedTuple):
    """A connector of Kafka Connect that does not run, or of which a task does not.

    Attributes:
        state: As Kafka Connect names it, such as FAILED.
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
        database: Connection string for psql, without a password.
    """

    connect_url: str = ""
    connect_silent: str = ""
    connectors: tuple[Connector, ...] = ()
    database: str = ""
    slots: tuple[Slot, ...] = ()


class Host(NamedTuple):
    """This machine and this Python.

    Attributes:
        memory_bytes: Memory limit of a process, by machine or control group; 0: not known.
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
    """The answers; unanswered questions keep their defaults and are listed in `silent`.

    Attributes:
        unreachable: Why no broker was reached; empty: one was.
        silent: Question -> why it was not answered.
        brokers: Id -> host:port.
        daemon_lacks, client_lacks: Grants that are not there, in part.
        transactional_refusal: Why a transactional id of the daemon's was refused; empty: it was
            not.
        workers: Live members of the daemon's group.
        responders: Producer group -> live members of its check group.
        away: Partitions, of internal topics and of known real ones, that take no records.
        damaged: Pair -> the record that aborts every reader.
        plain: Transaction topics to which somebody else writes.
        newest_ms: Newest append time of the half topic; -1: none.
        not_believed: Who does not sign as is demanded; empty without a key file.
        key_file_flaw: Why the key file cannot be used; empty: it can, or there is none.
        key_problems: What has to be done about the key file.
        record: Limits that the daemon published last.
        named_topics: Real topics that the policy names without a pattern, or the request.
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


class Severity(Enum):
    """How bad a finding is; the exit status of the command goes by the worst."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; `mend` is a command that mends it, or that shows what to mend."""

    severity: Severity
    code: str
    what: str
    mend: str


# Code -> severity and meaning. A finding made of a problem of `topics check` that is advice
# only is a NOTE, whatever the severity here.
MEANINGS: dict[str, tuple[Severity, str]] = {
    "unreachable": (Severity.ERROR, "no broker answers; nothing else was asked"),
    "not-told": (Severity.WARNING, "a question was not answered: its findings are not known"),
    "topic-missing": (Severity.ERROR, "a topic of the installation does not exist"),
    "topic-setting": (Severity.ERROR, "a setting of a topic loses records or refuses them"),
    "topic-replicas": (Severity.WARNING, "a topic has fewer replicas than the brokers allow"),
    "topic-in-sync": (Severity.WARNING, "a replica has not caught up: its broker is down, or slow"),
    "topic-offline": (Severity.ERROR, "a partition of the installation takes no records"),
    "partitions": (Severity.ERROR, "half and op topic have different numbers of partitions"),
    "offsets": (Severity.ERROR, "a partition has no offsets that can be trusted: it is stopped"),
    "damaged": (Severity.ERROR, "a damaged record ends the worker that reads it: its pair waits"),
    "retention-ends": (Severity.ERROR, "retention deletes a needed record within a day"),
    "offsets-retention": (
        Severity.WARNING,
        "brokers forget the offsets of a stopped daemon too soon",
    ),
    "kafka-txn-timeout": (Severity.ERROR, "brokers refuse the daemon's transactional producers"),
    "session-timeout": (Severity.ERROR, "brokers refuse the daemon's session_timeout_ms"),
    "broker-versions": (Severity.WARNING, "brokers of different releases run"),
    "daemon-right": (Severity.ERROR, "the daemon's principal lacks a right"),
    "client-right": (Severity.ERROR, "a client's principal lacks a right"),
    "frozen-lso": (Severity.ERROR, "an open kafka_txn holds back the readers of a partition"),
    "no-worker": (Severity.ERROR, "no worker runs: nothing is delivered"),
    "idle-workers": (Severity.NOTE, "more workers than partitions: some have no work"),
    "no-responder": (Severity.WARNING, "no member of a producer group answers checks"),
    "settings-differ": (Severity.WARNING, "the daemon runs with other limits than these"),
    "clock-broker": (Severity.WARNING, "a broker's clock and this machine's differ"),
    "clock-client": (Severity.WARNING, "a client's clock and the brokers' differ"),
    "real-topic": (
        Severity.WARNING,
        "a real topic that is named here, or that deliveries wait for, does not exist",
    ),
    "partition-away": (
        Severity.ERROR,
        "a partition of a real topic takes no records: deliveries to it wait",
    ),
    "delivery-waits": (
        Severity.WARNING,
        "deliveries wait, and the brokers' metadata do not show for what",
    ),
    "plain-writer": (
        Severity.WARNING,
        "another producer than the daemon writes to a transaction topic of the policy",
    ),
    "not-signed": (
        Severity.ERROR,
        "records are not signed as the key file demands, or will demand within a day",
    ),
    "key-file": (Severity.ERROR, "the key file cannot be used"),
    "keys": (Severity.WARNING, "a signing key ends soon, or one is missing"),
    "connect-silent": (Severity.ERROR, "Kafka Connect does not answer, or refuses the call"),
    "connector-stopped": (
        Severity.ERROR,
        "a connector or a task of it does not run: its changes wait",
    ),
    "slot-lost": (Severity.ERROR, "PostgreSQL has removed log that a slot needs: changes are lost"),
    "slot-log": (Severity.ERROR, "PostgreSQL keeps more than 1 GiB of log for a slot"),
    "slot-inactive": (
        Severity.WARNING,
        "a slot has no reader: PostgreSQL keeps all log from its position on",
    ),
    "package": (Severity.ERROR, "another package or directory shadows halfbridge"),
    "client-library": (Severity.ERROR, "the Kafka client library skips records"),
    "memory": (Severity.WARNING, "the memory budgets do not fit into this machine's memory"),
    "open-files": (Severity.WARNING, "this process may open too few files"),
}


def finding(code: str, what: str, mend: str) -> Finding:
    """Return a finding with the severity of its code."""
    return Finding(MEANINGS[code][0], code, what, mend)


# Rooms of the package, each of which another package or directory may shadow.
_ROOMS = ("serde", "bridge", "checker")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")
_KIB = 1024
_PACKAGE = Path(__file__).parents[3]


def host_facts() -> Host:
    """Return facts of this machine, as far as it reports them."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files_max = 0 if soft == resource.RLIM_INFINITY else soft
    return Host(memory_bytes(), files_max, foreign_modules(), client_versions())


def memory_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return how much memory a process may use; 0: not known."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = meminfo.read_text("utf-8").splitlines()
        (total,) = (line for line in lines if line.startswith("MemTotal:"))
        limits.append(int(total.split()[1]) * _KIB)
    with suppress(OSError, ValueError):  # `max` is no number, and no limit
        limits.append(int(cgroup.read_text("utf-8")))
    return min(limits, default=0)


def foreign_modules(package: Path | None = None) -> dict[str, str]:
    """Return rooms of the package that are imported from elsewhere, and from where.

    A module `serde` of another project is no conflict: ours is `halfbridge.serde` (ADR 27). Trouble
    is a directory or package `halfbridge` that has no or other rooms.
    """
    base = package or _PACKAGE
    found = {}
    for room in _ROOMS:
        spec = importlib.util.find_spec(f"halfbridge.{room}")
        place = "nowhere" if spec is None or spec.origin is None else spec.origin
        if Path(place).parent.resolve() != (base / room).resolve():
            found[f"halfbridge.{room}"] = place
    return found


# A Kafka property is reported by name, without its value: many contain a secret in some set-up.
HIDDEN = "(hidden)"
# Brokers' settings in the report: those that findings use.
_BROKER_SETTINGS = ("timeout.ms", "retention.minutes", "version", "min.isr", "replication.factor")


def finding_body(found: Sequence[Finding]) -> dict[str, Any]:
    """Return findings as the JSON object that the command prints."""
    return {
        "ok": all(each.severity.value == "note" for each in found),
        "findings": [
            {**dataclasses.asdict(each), "severity": each.severity.value} for each in found
        ],
    }


def write_bundle(
    path: Path, facts: Facts, found: Sequence[Finding], config: CheckerConfig, *, version: str
) -> None:
    """Write a ZIP file of JSON files; it holds no record, no password and no Kafka property."""
    settings = {**to_plain(config), "kafka": dict.fromkeys(config.kafka, HIDDEN)}
    system = {
        "halfbridge": version,
        "python": platform.python_version(),
        "system": platform.platform(),
        "confluent_kafka": facts.host.kafka_client[0],
        "librdkafka": facts.host.kafka_client[1],
    }
    files = {
        "findings.json": finding_body(found),
        "facts.json": _plain(facts),
        "settings.json": settings,
        "versions.json": system,
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in files.items():
            bundle.writestr(name, json.dumps(content, indent=2, default=str) + "\n")


def _plain(facts: Facts) -> dict[str, Any]:
    plain = dataclasses.asdict(facts)
    plain["topics"] = {name: seen._asdict() for name, seen in facts.topics.items()}
    plain["broker_settings"] = {
        broker: {key: value for key, value in told.items() if key.endswith(_BROKER_SETTINGS)}
        for broker, told in facts.broker_settings.items()
    }
    return plain
