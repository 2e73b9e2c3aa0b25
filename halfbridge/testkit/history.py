"""A history: what clients did, what came out, and what the judge finds wrong with it.

Values are unique, outcomes have three values, everything is read from offset zero, and what
clients claim is kept apart from what the op log says (the practice of Jepsen's `kafka`
workload). Pure; `judge` judges, `client_log` keeps what clients did, `reader` reads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING

from halfbridge.serde.records import PARTITION_BY_KEY, Op, OpKind

if TYPE_CHECKING:
    from collections.abc import Mapping

Headers = tuple[tuple[str, "bytes | None"], ...]
Position = tuple[int, int]  # op partition, op offset
_DIGEST_BYTES = 16  # 128 bits: two values are never taken for one


class Outcome(str, Enum):
    """What a client knows of a thing it tried."""

    OK = "OK"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


class Anomaly(str, Enum):
    """What can be wrong with a history; each finding has exactly one."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    PHANTOM = "phantom"
    TORN = "torn"
    REORDERED = "reordered"
    CORRUPTED = "corrupted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message as a client gave it; `digest` stands for the value (see `digest_of`)."""

    index: int
    topic: str
    key: bytes | None
    digest: str
    headers: Headers = ()
    partition: int = PARTITION_BY_KEY
    outcome: Outcome = Outcome.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A decision that a client made, or a resolution that a checker gave.

    Attributes:
        kind: COMMIT or ROLLBACK.
        outcome: OK only when acknowledged; a checker's answer is always UNKNOWN.
        position: Where the acknowledgement says that the op stands; None unless OK.
    """

    kind: OpKind
    outcome: Outcome
    position: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTransaction:
    """All that clients know of one transaction, whichever process did it."""

    transaction_id: str
    producer_group: str
    messages: tuple[SentMessage, ...]
    claims: tuple[Claim, ...]
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """A record read from a real topic or the dead-letter topic, as it stood."""

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
    """One thing that is wrong."""

    anomaly: Anomaly
    transaction_id: str
    detail: str

    def __str__(self) -> str:
        return f"{self.anomaly.value}: {self.transaction_id or '?'}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge says.

    Attributes:
        findings: All that is wrong, in no particular order.
        delivered: Distinct messages in real topics, by transaction id.
        dead_lettered: Distinct messages in the dead-letter topic, by transaction id.
        repeats: Records of messages that stand in their real topic already, where an installation
            that delivers at least once may write them.
    """

    findings: tuple[Finding, ...]
    delivered: Mapping[str, int] = field(repr=False)
    dead_lettered: Mapping[str, int] = field(repr=False)
    repeats: int = 0

    @property
    def ok(self) -> bool:
        """Tell whether nothing is wrong."""
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
    """Return what stands for a value in a history; null and empty differ."""
    if value is None:
        return "null"
    return blake2b(value, digest_size=_DIGEST_BYTES).hexdigest()
