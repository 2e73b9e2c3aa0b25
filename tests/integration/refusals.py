"""Good transactions around refused ones, and what must become of both."""

from halfbridge.serde.records import DeadReason
from tests.integration.installation import Installation
from tests.integration.tail import Record, Stored


def around(installation: Installation, orders: str, bad: list[Stored]) -> list[Stored]:
    """Commit good transactions around `bad` ones, so that all share a batch; return the good."""
    good = [installation.half(orders) for _ in range(10)]
    for half in (*good[:5], *bad, *good[5:]):
        installation.commit(half)
    return good


def expect(
    installation: Installation, orders: str, *, good: list[Stored], bad: list[Stored]
) -> list[Record]:
    """Assert that the good were delivered and the bad dead-lettered; return their letters."""
    installation.await_marker()
    letters = installation.dead(len(bad))
    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [each.transaction_id for each in good]
    assert [each.half.transaction_id for each in installation.dead_letters()] == [
        each.transaction_id for each in bad
    ]
    assert {each.dead.reason for each in letters} == {DeadReason.UNDELIVERABLE}
    assert all(each.dead.detail for each in letters)
    return letters
