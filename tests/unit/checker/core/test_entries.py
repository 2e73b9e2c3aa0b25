"""Transactions by identity: id, resume count and, where two groups share them, the group."""

from __future__ import annotations

from halfbridge.checker.core.entries import Entries, Entry
from halfbridge.checker.core.events import HalfRead
from tests.playbook import metadata


def _entry(group: str) -> Entry:
    told = metadata("A")._replace(producer_group=group)
    return Entry(HalfRead(0, 0, told, "", 1, None))


def test_groups_with_one_id_are_kept_apart() -> None:
    """Each group finds its own transaction, whoever came first and whoever is forgotten first."""
    entries = Entries()
    mine, theirs = _entry("orders"), _entry("billing")
    assert entries.find("A", 0, "orders") is None
    assert not entries.is_other_groups("A", 0)
    entries.put(mine, "A", 0)
    assert entries.is_other_groups("A", 0)
    entries.put(theirs, "A", 0)
    assert entries.find("A", 0, "orders") is mine
    assert entries.find("A", 0, "billing") is theirs
    assert entries.find("A", 1, "orders") is None
    entries.remove(mine)
    assert entries.find("A", 0, "billing") is theirs
    entries.put(mine, "A", 0)
    entries.remove(theirs)
    assert list(entries) == [mine]
    assert len(entries) == 1
