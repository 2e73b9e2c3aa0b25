"""Words of sentences that operators read."""

from __future__ import annotations

from halfbridge.checker.admin.words import counted


def test_a_noun_goes_with_its_number() -> None:
    """Only one of a thing has no s."""
    told = [counted(count, "message") for count in range(3)]
    assert told == ["0 messages", "1 message", "2 messages"]
