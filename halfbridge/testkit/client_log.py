"""The log that a client process keeps of what it does: JSON lines, one write each.

An entry stands in the file before the thing it announces begins (`sending`, `deciding`) and
another one after it ended, so what a SIGKILL leaves in doubt is known: an announcement
without an end is an UNKNOWN outcome. Each line is one `write` to a file opened for appending,
which the kernel keeps when the process dies and does not interleave between threads.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.serde.records import PARTITION_BY_KEY, OpKind
from halfbridge.testkit.history import (
    Claim,
    ClientTransaction,
    Outcome,
    SentMessage,
    digest_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


class ClientLog:
    """Writes one client process's log; safe to use from many threads.

    Args:
        path: File to append to; a restarted process may go on with its predecessor's.
        producer_group: Group of the transactions in this file.
    """

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
            key=_to_hex(key),
            digest=digest_of(value),
            headers=[(name, _to_hex(content)) for name, content in headers],
            partition=partition,
            label=label,
            group=self._group,
        )

    def sent(self, transaction_id: str, index: int) -> None:
        """Say that the half message is durable."""
        self._write("sent", transaction_id, i=index)

    def send_failed(self, transaction_id: str, index: int) -> None:
        """Say that the half message is certainly not stored; say nothing when in doubt."""
        self._write("send_failed", transaction_id, i=index)

    def deciding(self, transaction_id: str, kind: OpKind) -> None:
        """Announce a decision of the producer."""
        self._write("deciding", transaction_id, kind=kind.value)

    def decided(self, transaction_id: str, kind: OpKind, *, partition: int, offset: int) -> None:
        """Say where the decision stands in the op log."""
        self._write("decided", transaction_id, kind=kind.value, at=(partition, offset))

    def decide_failed(self, transaction_id: str, kind: OpKind) -> None:
        """Say that the decision is certainly not stored; say nothing when in doubt."""
        self._write("decide_failed", transaction_id, kind=kind.value)

    def answering(self, transaction_id: str, kind: OpKind) -> None:
        """Announce what the checker is about to return (COMMIT or ROLLBACK)."""
        self._write("answering", transaction_id, kind=kind.value)

    def _write(self, entry: str, transaction_id: str, **fields: Any) -> None:
        line = json.dumps({"e": entry, "tx": transaction_id, **fields}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


def read_client_logs(paths: Iterable[Path]) -> list[ClientTransaction]:
    """Return the transactions of all client processes, merged by id.

    A last line without an end is what a killed process was writing: it is left out.

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
    """One transaction while its entries come in."""

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
        key=_from_hex(entry["key"]),
        digest=entry["digest"],
        headers=tuple((name, _from_hex(content)) for name, content in entry["headers"]),
        partition=entry["partition"],
        outcome=Outcome.UNKNOWN,
    )


def _to_hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def _from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
