"""The findings that there are, as docs/operations.md shows them: how bad each is, what it means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How bad a finding is; the exit status of the command goes by the worst."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        severity: How bad it is.
        code: Key of MEANINGS.
        what: What is wrong, in one line.
        mend: A command that mends it, or that shows what to mend.
    """

    severity: Severity
    code: str
    what: str
    mend: str


# Code -> severity and what it means. A finding made of a problem of `topics check` that is advice
# only is a NOTE, whatever stands here.
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
    "no-responder": (Severity.WARNING, "nobody answers checks of a producer group"),
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
        "somebody beside the daemon writes to a transaction topic of the policy",
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
    "slot-inactive": (Severity.WARNING, "nobody reads a slot: PostgreSQL keeps all log from it on"),
    "package": (Severity.ERROR, "another package or directory stands in for halfbridge"),
    "client-library": (Severity.ERROR, "the Kafka client library skips records"),
    "memory": (Severity.WARNING, "the memory budgets do not fit into this machine's memory"),
    "open-files": (Severity.WARNING, "this process may open too few files"),
}


def finding(code: str, what: str, mend: str) -> Finding:
    """Return a finding with the severity of its code."""
    return Finding(MEANINGS[code][0], code, what, mend)
