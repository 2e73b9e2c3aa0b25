"""What has to be done about a key file. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfbridge.checker.admin.words import shown_time
from halfbridge.serde.signing_keys import ANY_GROUP, Role

if TYPE_CHECKING:
    from halfbridge.serde.signing_keys import KeyRing, SigningKey

# A key without a successor is told so long before its end: time to give all a new file.
END_MS = 14 * 24 * 3_600_000
# A demand that begins within this time is taken as if it held: so long an operator has to give the
# key file to clients that have none.
SOON_MS = 24 * 3_600_000


def key_problems(ring: KeyRing, now_ms: int) -> list[str]:
    """Return what has to be done about a key file, in words.

    Args:
        ring: What the file says.
        now_ms: The time, ms since 1970.
    """
    ends = [
        f"key {key.id} ends at {shown_time(key.valid_until_ms)}, and no other key of role"
        f" {key.role.value} goes on: add one with `halfbridge keys new`"
        for key in ring.keys.values()
        if now_ms < key.valid_until_ms <= now_ms + END_MS and not _is_followed(ring, key)
    ]
    if not any(each.until_ms > now_ms for each in ring.demands):
        return ends
    there = {key.role for key in ring.keys.values()}
    lacks = [
        f"signatures are demanded, and there is no key of role {role.value}"
        for role in Role
        if role not in there
    ]
    return ends + lacks


def as_if_demanded(ring: KeyRing, now_ms: int) -> KeyRing | None:
    """Return the key ring as it will be within SOON_MS; None: nothing is demanded then.

    Its demands hold at all append times, so that records from before a demand are judged as if the
    demand had held.
    """
    demands = tuple(
        replace(each, from_ms=0)
        for each in ring.demands
        if each.from_ms <= now_ms + SOON_MS and now_ms < each.until_ms
    )
    return replace(ring, demands=demands) if demands else None


def demanded_from_ms(ring: KeyRing, group: str, now_ms: int) -> int:
    """Return since when, or from when on, signatures of a producer group are demanded.

    A demand that is over does not count; at least one other demand must name the group.
    """
    return min(
        each.from_ms
        for each in ring.demands
        if now_ms < each.until_ms and (group in each.groups or ANY_GROUP in each.groups)
    )


def _is_followed(ring: KeyRing, key: SigningKey) -> bool:
    return all(
        ring.end_of(key.role, group, key.valid_until_ms - 1) > key.valid_until_ms
        for group in key.groups
    )
