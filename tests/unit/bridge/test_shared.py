"""The half partition of transactions without a key: shared for a moment, then chosen again."""

from halfbridge.bridge.shared import KEYLESS_STICKY_S, Shared
from halfbridge.serde.partitioner import partition_of
from tests.fake_ports import Clock, fake_ports
from tests.unit.bridge.fake_writer import FakeWriter, shared_around

IDS = [f"{number:032x}" for number in range(4)]


def _shared(clock: Clock) -> Shared:
    return shared_around(FakeWriter(), ports=fake_ports(clock=clock))


def test_transactions_of_one_moment_share_a_partition() -> None:
    """The first one's id chooses it; the choice ends KEYLESS_STICKY_S later, used or not."""
    clock = Clock()
    shared = _shared(clock)
    chosen = []
    for each in IDS:
        chosen.append(shared.half_partition(each, None))
        clock.now += 0.6 * KEYLESS_STICKY_S
    assert chosen == [0, 0, 2, 2]


def test_a_key_chooses_alone() -> None:
    """Transactions of one key share a partition for ever, whatever those without a key share."""
    shared = _shared(Clock())
    assert shared.half_partition(IDS[3], None) == 3
    assert shared.half_partition(IDS[1], b"k") == partition_of(b"k", shared.partitions) != 3
    assert shared.half_partition(IDS[1], None) == 3
