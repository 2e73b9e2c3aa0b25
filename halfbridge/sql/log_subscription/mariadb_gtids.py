"""MariaDB's GTID positions as text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def gtids_of(text: str) -> dict[int, str]:
    """Return domain to GTID of a GTID position such as 0-1-42,1-2-7; an empty one has none."""
    return {int(each.partition("-")[0]): each for each in text.split(",") if each}


def position_of(gtids: Mapping[int, str]) -> str:
    """Return the GTID position, in the order of domains."""
    return ",".join(gtids[domain] for domain in sorted(gtids))
