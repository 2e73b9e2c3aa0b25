"""Where one transaction is looked for."""

from __future__ import annotations

import pytest

from halfbridge.checker.admin.transactions.logs import birth_ms, slices
from halfbridge.serde.identity import TransactionIds

NOON = 1_700_000_000_000


def test_an_id_says_when_it_was_made() -> None:
    """The time of a UUIDv7 stands in its first 48 bits."""
    identity = TransactionIds().next()
    assert birth_ms(identity) == int(identity, 16) >> 80
    assert birth_ms(identity.upper()) == birth_ms(identity)


@pytest.mark.parametrize(
    "text", ["", "x" * 32, "0" * 32, "1d1a94a20c870008000000000000001", "\u0663" * 32, "7" * 4_000]
)
def test_other_ids_say_nothing(text: str) -> None:
    """Strangers may write any text as an id."""
    assert birth_ms(text) is None


def test_every_moment_from_a_minute_before_on_is_read_once() -> None:
    """The likeliest range of time comes first, and the ranges leave no gap."""
    found = slices(NOON, None, is_exact=False)
    assert [each.from_ms - NOON for each in found] == [
        *(-1_000, -10_000, 2_000, -60_000, 30_000, 600_000),
    ]
    ordered = sorted(found)
    assert [each.until_ms for each in ordered[:-1]] == [each.from_ms for each in ordered[1:]]
    assert ordered[-1].until_ms is None


def test_a_given_time_is_where_reading_begins() -> None:
    """Nothing before it is read."""
    assert min(each.from_ms for each in slices(NOON, None, is_exact=True)) == NOON


@pytest.mark.parametrize("after_ms", [-100_000, -10_000, 0, 1_000, 300_000, 10_000_000])
def test_an_end_cuts_the_ranges(after_ms: int) -> None:
    """Nothing behind it is read, and there is always a range."""
    found = slices(NOON, NOON + after_ms, is_exact=False)
    assert found
    assert max(each.until_ms or 0 for each in found) <= NOON + after_ms
    assert all(each.until_ms is not None for each in found)
