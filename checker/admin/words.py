"""Words of sentences that operators read."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 message` and `2 messages`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
