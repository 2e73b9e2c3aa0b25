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
from typing import TYPE_CHECKING, NamedTuple

from halfbridge.checker.admin.topics import Report
from halfbridge.kafka.making import client_versions
from halfbridge.serde.settings import to_plain
from halfbridge.serde.units import KIB

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
    """A partition whose last stable offset is below its end, and did not move."""

    topic: str
    partition: int
    offset: int  # the last stable offset: the first record of the open kafka_txn
    since_ms: int  # timestamp of that record; -1: it could not be read
    transaction_id: str  # message transaction that the record belongs to; empty: it names none


class BornClock(NamedTuple):
    """How the clock of a producer group's clients differs from the brokers'."""

    producer_group: str
    lag_ms: int  # least of (append time - born timestamp): negative where a client's clock is ahead
    records: int


class NotBelieved(NamedTuple):
    """Half records that are not signed as is demanded, or as will be within a day."""

    producer_group: str
    role: Role  # who wrote them: clients of the group, the daemon (copies), or operators
    records: int  # how many of the newest ones
    newest_ms: int  # append time of the last one
    why: str  # why the last one is refused
    demanded_from_ms: int  # first append time of a record that must be signed


class PlainRecords(NamedTuple):
    """Records of a transaction topic that the daemon did not write."""

    topic: str
    # partition, offset: position of the last one.
    partition: int
    offset: int
    records: int  # how many of the records that were read


class Delayed(NamedTuple):
    """Committed transactions whose delivery waits, by a real topic of theirs."""

    topic: str
    transactions: int
    oldest_id: str  # the transaction that was committed first
    since_ms: int  # append time of its COMMIT; below 0: not known
    lacks: tuple[Lack, ...]  # what of the topic cannot be written to now, by the brokers' metadata


class Connector(NamedTuple):
    """A connector of Kafka Connect that does not run, or of which a task does not."""

    name: str
    state: str  # as Kafka Connect names it, such as FAILED
    tasks: tuple[str, ...]
    trace: str  # first cause of a failure, one line; empty without one


class Slot(NamedTuple):
    """A logical replication slot of PostgreSQL."""

    name: str
    is_active: bool  # a connection reads it now
    kept_bytes: int  # log (WAL) that the server keeps for it; -1: not known, as for a lost slot
    is_lost: bool  # the server has removed log that it needs


class Drift(NamedTuple):
    """A table that changed after the connector was made."""

    connector: str
    table: str  # SCHEMA.TABLE
    # A table that the connector reads, and from which this one inherits, which no connector reads.
    # Empty: the connector reads this table, which is system-versioned now.
    parent: str = ""


class Changes(NamedTuple):
    """What delivers the changes of a database."""

    connect_url: str = ""  # address of Kafka Connect; empty: it was not asked
    connect_silent: str = ""  # why it did not answer; empty: it did
    connectors: tuple[Connector, ...] = ()
    # Connection string for psql, or options of the client mariadb, without a password.
    database: str = ""
    slots: tuple[Slot, ...] = ()
    drifts: tuple[Drift, ...] = ()


class Host(NamedTuple):
    """This machine and this Python."""

    memory_bytes: int = 0  # memory limit of a process, by machine or control group; 0: not known
    files_max: int = 0  # files that this process may open; 0: not known
    # Module names of this project that something else answers to -> its file.
    foreign: Mapping[str, str] = {}
    kafka_client: tuple[str, str] = ("", "")  # versions of confluent-kafka and of librdkafka


@dataclass(slots=True, kw_only=True)
class Facts:
    """The answers; unanswered questions keep their defaults and are listed in `silent`."""

    asked_at_ms: int = 0
    unreachable: str = ""  # why no broker was reached; empty: one was
    silent: dict[str, str] = field(default_factory=dict)  # question -> why it was not answered
    brokers: Mapping[int, str] = field(default_factory=dict)  # id -> host:port
    broker_settings: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    topics: Mapping[str, SeenTopic] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    # daemon_lacks, client_lacks: grants that are not there, in part.
    daemon_lacks: tuple[Acl, ...] = ()
    client_lacks: tuple[Acl, ...] = ()
    # Why a transactional id of the daemon's was refused; empty: it was not.
    transactional_refusal: str = ""
    workers: tuple[str, ...] | None = None  # live members of the daemon's group
    # Producer group -> live members of its check group.
    responders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stalls: tuple[Stall, ...] = ()
    # Partitions, of internal topics and of known real ones, that take no records.
    away: tuple[PlacedPartition, ...] = ()
    delayed: tuple[Delayed, ...] = ()
    # Pair -> the record that aborts every reader.
    damaged: Mapping[int, str] = field(default_factory=dict)
    plain: tuple[PlainRecords, ...] = ()  # transaction topics to which somebody else writes
    clocks: tuple[BornClock, ...] = ()
    newest_ms: int = -1  # newest append time of the half topic; -1: none
    # Half messages a second, mean of the last hour, with copies; None: not known.
    half_per_s: float | None = None
    # Who does not sign as is demanded; empty without a key file.
    not_believed: tuple[NotBelieved, ...] = ()
    key_file_flaw: str = ""  # why the key file cannot be used; empty: it can, or there is none
    key_problems: tuple[str, ...] = ()  # what has to be done about the key file
    record: DaemonSettings | None = None  # limits that the daemon published last
    # Real topics that the policy names without a pattern, or the request.
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
    """One thing that is wrong; `fix` is a command that removes it, or that shows what to do."""

    severity: Severity
    code: str
    what: str
    fix: str


# Code -> meaning. A finding made of a problem of `topics check` that is advice only is a NOTE,
# whatever its code.
_ERRORS = {
    "unreachable": "no broker answers; nothing else was asked",
    "topic-missing": "a topic of the installation does not exist",
    "topic-setting": "a setting of a topic loses records or refuses them",
    "topic-offline": "a partition of the installation takes no records",
    "partitions": "half and op topic have different numbers of partitions",
    "offsets": "a partition has no offsets that can be trusted: it is stopped",
    "damaged": "a damaged record ends the worker that reads it: its pair waits",
    "retention-ends": "retention deletes a needed record within a day",
    "kafka-txn-timeout": "brokers refuse the daemon's transactional producers",
    "session-timeout": "brokers refuse the daemon's session_timeout_ms",
    "daemon-right": "the daemon's principal lacks a right",
    "client-right": "a client's principal lacks a right",
    "frozen-lso": "an open kafka_txn holds back the readers of a partition",
    "no-worker": "no worker runs: nothing is delivered",
    "partition-offline": "a partition of a real topic takes no records: deliveries to it wait",
    "not-signed": "records are not signed as the key file demands, or will demand within a day",
    "key-file": "the key file cannot be used",
    "connect-silent": "Kafka Connect does not answer, or refuses the call",
    "connector-stopped": "a connector or a task of it does not run: its changes wait",
    "table-unread": "a table inherits from one that a connector reads, and is not read itself",
    "table-versioned": "a table that a connector reads is system-versioned: updates are doubled",
    "slot-lost": "PostgreSQL has removed log that a slot needs: changes are lost",
    "slot-log": "PostgreSQL keeps more than 1 GiB of log for a slot",
    "package": "another package or directory shadows halfbridge",
    "client-library": "the Kafka client library skips records",
}
_WARNINGS = {
    "unanswered": "a question was not answered: its findings are not known",
    "topic-replicas": "a topic has fewer replicas than the brokers allow",
    "topic-in-sync": "a replica has not caught up: its broker is down, or slow",
    "offsets-retention": "brokers forget the offsets of a stopped daemon too soon",
    "broker-versions": "brokers of different releases run",
    "no-responder": "no member of a producer group answers checks",
    "settings-differ": "the daemon runs with other limits than these",
    "clock-broker": "a broker's clock and this machine's differ",
    "clock-client": "a client's clock and the brokers' differ",
    "real-topic": "a real topic that is named here, or that deliveries wait for, does not exist",
    "delivery-waits": "deliveries wait, and the brokers' metadata do not show for what",
    "plain-writer": "another producer than the daemon writes to a transaction topic of the policy",
    "keys": "a signing key ends soon, or one is missing",
    "slot-inactive": "a slot has no reader: PostgreSQL keeps all log from its position on",
    "memory": "the memory budgets do not fit into this machine's memory",
    "open-files": "this process may open too few files",
}
_NOTES = {
    "idle-workers": "more workers than partitions: some have no work",
    "surplus-pairs": "more half partitions than workers and load need: each costs requests",
}
MEANINGS: dict[str, tuple[Severity, str]] = {
    code: (severity, meaning)
    for severity, meanings in zip(Severity, (_ERRORS, _WARNINGS, _NOTES), strict=True)
    for code, meaning in meanings.items()
}


def finding(code: str, what: str, fix: str, severity: Severity | None = None) -> Finding:
    """Return a finding, with the severity of its code unless another one is given."""
    return Finding(severity or MEANINGS[code][0], code, what, fix)


# Subpackages that another package or directory of the name halfbridge may shadow.
_SUBPACKAGES = ("serde", "bridge", "checker")
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")
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
        limits.append(int(total.split()[1]) * KIB)
    with suppress(OSError, ValueError):  # `max` is no number, and no limit
        limits.append(int(cgroup.read_text("utf-8")))
    return min(limits, default=0)


def foreign_modules(package: Path | None = None) -> dict[str, str]:
    """Return subpackages of halfbridge that are imported from elsewhere, and from where.

    A module `serde` of another project is no conflict: ours is `halfbridge.serde` (ADR 27). A
    directory or package `halfbridge` without these subpackages, or with others, is one.
    """
    base = package or _PACKAGE
    found = {}
    for name in _SUBPACKAGES:
        spec = importlib.util.find_spec(f"halfbridge.{name}")
        place = "nowhere" if spec is None or spec.origin is None else spec.origin
        if Path(place).parent.resolve() != (base / name).resolve():
            found[f"halfbridge.{name}"] = place
    return found


# A Kafka property is reported by name, without its value: many contain a secret in some set-up.
HIDDEN = "(hidden)"
# Brokers' settings in the report: those that findings use.
_BROKER_SETTINGS = ("timeout.ms", "retention.minutes", "version", "min.isr", "replication.factor")


def finding_body(found: Sequence[Finding]) -> dict[str, object]:
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


def _plain(facts: Facts) -> dict[str, object]:
    plain = dataclasses.asdict(facts)
    plain["topics"] = {name: seen._asdict() for name, seen in facts.topics.items()}
    plain["broker_settings"] = {
        broker: {key: value for key, value in settings.items() if key.endswith(_BROKER_SETTINGS)}
        for broker, settings in facts.broker_settings.items()
    }
    return plain
