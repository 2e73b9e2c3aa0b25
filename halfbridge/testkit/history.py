"""A history: the clients' actions, the records that were read, and the judge's findings.

Values are unique, outcomes have three values, everything is read from offset zero, and clients'
claims are kept apart from the op log (the practice of Jepsen's `kafka` workload). `judge` judges,
`reader` reads.

`ClientLog` records a client process's actions: JSON lines, one `write` each to a file opened for
appending, which the kernel keeps when the process dies and does not interleave between threads. It
writes an entry before an action begins (`sending`, `deciding`) and another one after it ended, so
what a SIGKILL leaves in doubt is known: an announcement without an end is an UNKNOWN outcome.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from halfbridge.serde.records import PARTITION_BY_KEY, Op, OpKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

Headers = tuple[tuple[str, "bytes | None"], ...]
Position = tuple[int, int]  # op partition, op offset
_DIGEST_BYTES = 16  # 128 bits: two values are never taken for one


class Outcome(str, Enum):
    """The outcome of an action, as far as the client knows it."""

    OK = "OK"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


class Anomaly(str, Enum):
    """The kinds of findings; each finding has exactly one."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    PHANTOM = "phantom"
    TORN = "torn"
    REORDERED = "reordered"
    CORRUPTED = "corrupted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message as a client sent it; `digest` replaces the value (see `digest_of`)."""

    index: int
    topic: str
    key: bytes | None
    digest: str
    headers: Headers = ()
    partition: int = PARTITION_BY_KEY
    outcome: Outcome = Outcome.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A decision that a client made (COMMIT, ROLLBACK), or a resolution that a checker gave.

    The outcome is OK only when acknowledged; then `position` is the op's acknowledged position. A
    checker's answer is always UNKNOWN.
    """

    kind: OpKind
    outcome: Outcome
    position: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTransaction:
    """All that clients know of one transaction, merged from all client processes."""

    transaction_id: str
    producer_group: str
    messages: tuple[SentMessage, ...]
    claims: tuple[Claim, ...]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A record as read from a real topic or the dead-letter topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOp:
    """An op read from the op topic."""

    partition: int
    offset: int
    op: Op


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation in a history."""

    anomaly: Anomaly
    transaction_id: str
    detail: str

    def __str__(self) -> str:
        return f"{self.anomaly.value}: {self.transaction_id or '?'}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the judge.

    Attributes:
        findings: All violations, in no particular order.
        delivered: Distinct messages in real topics, by transaction id.
        dead_lettered: Distinct messages in the dead-letter topic, by transaction id.
        repeats: Number of records that repeat a message of their real topic, where at-least-once
            delivery permits it.
    """

    findings: tuple[Finding, ...]
    delivered: Mapping[str, int] = field(repr=False)
    dead_lettered: Mapping[str, int] = field(repr=False)
    repeats: int = 0

    @property
    def ok(self) -> bool:
        """Return whether there are no findings."""
        return not self.findings

    @property
    def counts(self) -> dict[Anomaly, int]:
        """Number of findings of each anomaly, zeros included."""
        found = Counter(finding.anomaly for finding in self.findings)
        return {anomaly: found[anomaly] for anomaly in Anomaly}

    def describe(self, examples_max: int = 5) -> str:
        """Return the counts that are not zero, each with a few examples, one a line."""
        lines = [f"{a.value}: {n}" for a, n in self.counts.items() if n]
        for anomaly in Anomaly:
            same = [f"  {f}" for f in self.findings if f.anomaly is anomaly]
            lines += same[:examples_max]
        return "\n".join(lines) or "nothing is wrong"


def digest_of(value: bytes | None) -> str:
    """Return the digest that replaces a value in a history; null and empty differ."""
    if value is None:
        return "null"
    return blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()


class ClientLog:
    """Appends to a client process's log, or to its predecessor's; any thread may use it."""

    def __init__(self, path: Path, *, producer_group: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._group = producer_group

    def close(self) -> None:
        """Close the file; nothing may be written after that."""
        os.close(self._file)

    def sending(
        self,
        transaction_id: str,
        index: int,
        *,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        partition: int = PARTITION_BY_KEY,
        label: str = "",
    ) -> None:
        """Announce a send; `label` names the kind of transaction for a report."""
        self._write(
            "sending",
            transaction_id,
            i=index,
            topic=topic,
            key=to_hex(key),
            digest=digest_of(value),
            headers=[(name, to_hex(content)) for name, content in headers],
            partition=partition,
            label=label,
            group=self._group,
        )

    def sent(self, transaction_id: str, index: int) -> None:
        """Record that the half message is durable."""
        self._write("sent", transaction_id, i=index)

    def send_failed(self, transaction_id: str, index: int) -> None:
        """Record that the half message is certainly not stored; not called when in doubt."""
        self._write("send_failed", transaction_id, i=index)

    def deciding(self, transaction_id: str, kind: OpKind) -> None:
        """Announce a decision of the producer."""
        self._write("deciding", transaction_id, kind=kind.value)

    def decided(self, transaction_id: str, kind: OpKind, *, partition: int, offset: int) -> None:
        """Record the position of the decision in the op log."""
        self._write("decided", transaction_id, kind=kind.value, at=(partition, offset))

    def decide_failed(self, transaction_id: str, kind: OpKind) -> None:
        """Record that the decision is certainly not stored; not called when in doubt."""
        self._write("decide_failed", transaction_id, kind=kind.value)

    def answering(self, transaction_id: str, kind: OpKind) -> None:
        """Announce what the checker is about to return (COMMIT or ROLLBACK)."""
        self._write("answering", transaction_id, kind=kind.value)

    def _write(self, entry: str, transaction_id: str, **fields: object) -> None:
        line = json.dumps({"e": entry, "tx": transaction_id, **fields}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


def read_client_logs(paths: Iterable[Path]) -> list[ClientTransaction]:
    """Return the transactions of all client processes, merged by id.

    An unterminated last line, which a killed process was writing, is left out.

    Raises:
        ValueError: a line that is no entry (the file's writer must act).
    """
    drafts: dict[str, _Draft] = defaultdict(_Draft)
    for path in paths:
        for line in path.read_bytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            drafts[entry["tx"]].take(entry)
    return [draft.finish(transaction_id) for transaction_id, draft in drafts.items()]


class _Draft:
    """One transaction while its entries are read."""

    def __init__(self) -> None:
        self._messages: dict[int, SentMessage] = {}
        self._claims: list[Claim] = []
        self._open: dict[OpKind, int] = {}  # announced decisions without an end, by kind
        self._group = ""
        self._label = ""

    def take(self, entry: dict[str, Any]) -> None:
        kind = OpKind(entry["kind"]) if "kind" in entry else OpKind.UNKNOWN
        name = entry["e"]
        if name == "sending":
            self._messages[entry["i"]] = _message(entry)
            self._group, self._label = entry["group"], entry["label"]
        elif name in ("sent", "send_failed"):
            outcome = Outcome.OK if name == "sent" else Outcome.FAILED
            self._messages[entry["i"]] = replace(self._messages[entry["i"]], outcome=outcome)
        elif name in ("deciding", "answering"):
            if name == "deciding":
                self._open[kind] = len(self._claims)
            self._claims.append(Claim(kind=kind, outcome=Outcome.UNKNOWN))
        elif name == "decided":
            partition, offset = entry["at"]
            self._end(Claim(kind=kind, outcome=Outcome.OK, position=(partition, offset)))
        elif name == "decide_failed":
            self._end(Claim(kind=kind, outcome=Outcome.FAILED))
        else:
            raise ValueError(f"a client log has no entry {name!r}")

    def _end(self, claim: Claim) -> None:
        at = self._open.pop(claim.kind, None)
        if at is None:
            self._claims.append(claim)
        else:
            self._claims[at] = claim

    def finish(self, transaction_id: str) -> ClientTransaction:
        return ClientTransaction(
            transaction_id=transaction_id,
            producer_group=self._group,
            messages=tuple(self._messages[index] for index in sorted(self._messages)),
            claims=tuple(self._claims),
            label=self._label,
        )


def _message(entry: dict[str, Any]) -> SentMessage:
    return SentMessage(
        index=entry["i"],
        topic=entry["topic"],
        key=from_hex(entry["key"]),
        digest=entry["digest"],
        headers=tuple((name, from_hex(content)) for name, content in entry["headers"]),
        partition=entry["partition"],
        outcome=Outcome.UNKNOWN,
    )


def to_hex(data: bytes | None) -> str | None:
    """Return bytes as hexadecimal text for JSON."""
    return None if data is None else data.hex()


def from_hex(text: str | None) -> bytes | None:
    """Return the bytes of `to_hex`."""
    return None if text is None else bytes.fromhex(text)
