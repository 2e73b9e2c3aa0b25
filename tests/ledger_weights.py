"""What a ledger holds, counted anew from all that it holds: against the totals that it keeps."""

from collections import Counter
from typing import Any

from halfbridge.checker.core.entries import Entry
from halfbridge.checker.core.events import INDEX_BYTES, JunkRead, entry_bytes, op_bytes
from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.plan import letter_bytes, record_of
from halfbridge.serde.protocol import State


def counted(ledger: Ledger) -> dict[str, Any]:
    """Return the totals that the ledger keeps, once it is rebuilt."""
    memory, book = ledger.memory, ledger._book
    if not ledger.is_rebuilt:
        return {"ops": memory.ops_bytes}
    return {
        "ops": memory.ops_bytes,
        "bodies": memory.bodies_bytes,
        "entries": memory.entries_bytes,
        "topics": dict(book.held.by_topic),
    }


def weighed(ledger: Ledger) -> dict[str, Any]:
    """Return the same, from what is there."""
    ops = sum(map(op_bytes, ledger._waiting))
    if not ledger.is_rebuilt:
        return {"ops": ops}
    book = ledger._book
    again = [entry for entries in book.decided._again.values() for entry in entries]
    undecided = [entry for entry in book.entries if entry.state is State.UNDECIDED]
    halves = [half for entry in undecided for half in entry.messages.values()]
    letters = list(book.draft.letters._waiting)
    with_body = [
        *halves,
        *map(record_of, letters),
        *(read for read in ledger._waiting if isinstance(read, JunkRead)),
    ]
    return {
        "ops": ops,
        "bodies": sum(each.body_bytes for each in with_body if each.body is not None),
        "entries": sum(map(_entry_bytes, (*book.entries, *again)))
        + sum(half.metadata_bytes for half in halves)
        + sum(map(letter_bytes, letters))
        + ops,
        "topics": dict(Counter(half.metadata.real_topic for half in halves)),
    }


def _entry_bytes(entry: Entry) -> int:
    size_bytes = entry_bytes(str(entry.key[0]), entry.group)
    if entry.state is not State.UNDECIDED and isinstance(entry.known, frozenset):
        size_bytes += INDEX_BYTES * len(entry.known)
    return size_bytes
