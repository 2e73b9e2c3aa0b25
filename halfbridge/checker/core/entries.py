"""All known transactions, by their identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfbridge.checker.core.weights import INDEX_BYTES, entry_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfbridge.checker.core.entry import Entry, Key

_KEY_PARTS = 2  # transaction id and resume count; a forged id has the group as a third part


class Entries:
    """All known transactions, undecided and decided.

    The identity of a transaction is (transaction id, resume count). A half message of another
    group under a known id is a separate transaction, with the group in its key. So a group that
    forges an id is itself asked about the forged transaction, and cannot affect the first
    transaction (rule 6).

    Attributes:
        size_bytes: Bytes in memory, without the messages of undecided transactions: an estimate.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._by_key: dict[Key, Entry] = {}
        self._apart = 0  # transactions with the group in their key; almost always 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, transaction_id: str, resume_count: int, group: str) -> Entry | None:
        """Return the transaction of this group; None when it is not known."""
        entry = self._by_key.get((transaction_id, resume_count))
        if entry is not None and entry.group == group:
            return entry
        if not self._apart:
            return None
        return self._by_key.get((transaction_id, resume_count, group))

    def is_other_groups(self, transaction_id: str, resume_count: int) -> bool:
        """Tell whether another group has this id, after `find` returned None."""
        return (transaction_id, resume_count) in self._by_key

    def put(self, entry: Entry, transaction_id: str, resume_count: int) -> None:
        """Add a transaction that `find` did not find."""
        self.size_bytes += entry_bytes(transaction_id, entry.group)
        key: Key = (transaction_id, resume_count)
        entry.key = key
        if self._by_key.setdefault(key, entry) is not entry:
            entry.key = (*key, entry.group)
            self._by_key[entry.key] = entry
            self._apart += 1

    def take_over(self, others: Entries) -> None:
        """Take over the content of `others`. `others` must not be used afterwards.

        This object must be empty.
        """
        self._by_key, self._apart = others._by_key, others._apart
        self.size_bytes = others.size_bytes

    def replace(self, entry: Entry, successor: Entry) -> None:
        """Forget `entry`, and use its key for `successor`, which `waits` has counted."""
        self._by_key[entry.key] = successor
        self.size_bytes -= _size_bytes(entry)

    def remove(self, entry: Entry) -> None:
        """Forget a decided transaction."""
        del self._by_key[entry.key]
        self._apart -= len(entry.key) > _KEY_PARTS
        self.size_bytes -= _size_bytes(entry)

    def waits(self, successor: Entry) -> None:
        """Count the memory of an entry that is kept for `replace`."""
        self.size_bytes += _size_bytes(successor)


def _size_bytes(entry: Entry) -> int:
    """Return the bytes of a decided transaction."""
    transaction_id: Any = entry.key[0]
    size_bytes = entry_bytes(transaction_id, entry.group)
    if type(entry.known) is frozenset:
        size_bytes += INDEX_BYTES * len(entry.known)
    return size_bytes
