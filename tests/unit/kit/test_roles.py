"""How brokers place transactional ids, and the one request that is written by hand."""

import pytest

from tests.kit.roles import election, java_hash, positive, reassignment


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31))],
)
def test_java_hash(text: str, expected: int) -> None:
    """The published values of String.hashCode, the least integer among them."""
    assert java_hash(text) == expected


def test_positive() -> None:
    """As Kafka does it: the least integer becomes zero."""
    assert [positive(each) for each in (-7, 0, 7, -(2**31))] == [7, 0, 7, 0]


def test_reassignment() -> None:
    """Byte for byte: AlterPartitionReassignments, version 0."""
    parts = ("000003e8", "02", "03", b"ab".hex(), "02", "00000005", "03", "00000002", "00000001")
    assert reassignment("ab", 5, [2, 1], timeout_ms=1000).hex() == "".join(parts) + "000000"


def test_election() -> None:
    """Byte for byte: ElectLeaders, version 2, the preferred one."""
    parts = ("00", "02", "03", b"ab".hex(), "02", "00000005", "00", "000003e8", "00")
    assert election("ab", 5, timeout_ms=1000).hex() == "".join(parts)
