"""What clients of the broker in memory may not do."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Rights:
    """What clients may not do, by topic.

    Attributes:
        unread: Topics that they may not read.
        unwritten: Topics that they may not write to.
        unseen: Topics that they may not even see.
    """

    unread: set[str] = field(default_factory=set)
    unwritten: set[str] = field(default_factory=set)
    unseen: set[str] = field(default_factory=set)
