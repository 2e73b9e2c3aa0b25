"""The plan of batches, and of the buckets of relays: pure decisions."""

import pytest

from halfbridge.sql.local_messages.claims import BucketRow, plan_leases
from halfbridge.sql.local_messages.config import RelayConfig
from halfbridge.sql.local_messages.rows import LocalMessage
from halfbridge.sql.local_messages.sending import Batch, plan_batches, plan_keyless
from halfbridge.sql.local_messages.tables import BUCKETS
from tests.kit.examples import given, st

pytestmark = pytest.mark.feature

PARTITIONS = 3


def row(
    number: int, *, key_hash: int | None = 0, topic: str = "a", alone: bool = False, size: int = 1
) -> LocalMessage:
    """Return a row."""
    key = None if key_hash is None else b""
    return LocalMessage(number, topic, key, b"x" * size, None, None, key_hash, 0, alone, 0)


def plan(
    messages: list[LocalMessage],
    *,
    blocked: tuple[int, ...] = (),
    messages_max: int = 10,
    bytes_max: int = 1_000,
) -> list[list[int]]:
    """Return the ids of each batch."""
    batches = plan_batches(
        messages,
        half_partitions=PARTITIONS,
        blocked=blocked,
        messages_max=messages_max,
        bytes_max=bytes_max,
    )
    return ids(batches)


def ids(batches: list[Batch]) -> list[list[int]]:
    """Return the ids of each batch."""
    return [[each.id for each in batch.messages] for batch in batches]


def test_each_half_partition_has_a_batch_of_its_own() -> None:
    """Keys of one half partition go together, by id."""
    assert plan([row(1), row(2, key_hash=1), row(3, key_hash=3), row(4, key_hash=4)]) == [
        [1, 3],
        [2, 4],
    ]


def test_a_batch_has_one_topic_and_keys_keep_their_order_across_topics() -> None:
    """A key's row for another topic holds its later rows back, and no other keys."""
    rows = [row(1), row(2, topic="b"), row(3), row(4, key_hash=3), row(5, key_hash=3, topic="b")]
    assert plan(rows) == [[1, 4]]


def test_a_full_batch_holds_back_later_rows_of_its_keys() -> None:
    """Batches are full by count or by bytes; a smaller row does not overtake within its key."""
    assert plan([row(1), row(2), row(3)], messages_max=2) == [[1, 2]]
    rows = [row(1, size=5), row(2, size=9), row(3, size=2), row(4, key_hash=3, size=2)]
    assert plan(rows, bytes_max=10) == [[1, 4]]


def test_the_first_row_goes_however_large_it_is() -> None:
    """The client refuses a row that is too large; it does not wait for ever."""
    assert plan([row(1, size=5_000), row(2)]) == [[1]]


def test_a_row_that_is_sent_alone_is_a_batch_of_one() -> None:
    """Such a row shares no batch, and keeps the order of its key."""
    assert plan([row(1, alone=True), row(2), row(3, key_hash=3)]) == [[1]]
    assert plan([row(1), row(2, alone=True), row(3), row(4, key_hash=3)]) == [[1, 4]]


def test_a_blocked_half_partition_sends_nothing() -> None:
    """A COMMIT has to be repeated there first."""
    assert plan([row(1), row(2, key_hash=1), row(3, key_hash=3)], blocked=(0,)) == [[2]]


@given(
    st.lists(
        st.builds(
            row,
            st.just(0),
            key_hash=st.integers(0, 6),
            topic=st.sampled_from("ab"),
            alone=st.booleans(),
            size=st.integers(0, 6),
        ),
        max_size=30,
    ),
    st.sets(st.integers(0, PARTITIONS - 1)),
    st.integers(1, 5),
    st.integers(1, 12),
)
def test_rounds_relay_all_and_each_key_in_order(
    made: list[LocalMessage], blocked: set[int], messages_max: int, bytes_max: int
) -> None:
    """For any rows, a round sends a prefix of each key, and rounds end with everything sent."""
    left = [
        row(n, key_hash=m.key_hash, topic=m.topic, alone=m.send_alone, size=len(m.value or b""))
        for n, m in enumerate(made)
    ]
    while left:
        batches = plan_batches(
            left,
            half_partitions=PARTITIONS,
            blocked=blocked,
            messages_max=messages_max,
            bytes_max=bytes_max,
        )
        places = [batch.half_partition for batch in batches]
        assert len(set(places)) == len(places)
        assert not blocked & set(places)
        sent = {each.id for batch in batches for each in batch.messages}
        for batch in batches:
            assert len({each.topic for each in batch.messages}) == 1
            assert len(batch.messages) <= messages_max
            assert len(batch.messages) == 1 or not any(m.send_alone for m in batch.messages)
            size = sum(each.size_bytes for each in batch.messages)
            assert size <= max(bytes_max, batch.messages[0].size_bytes)
        for key_hash in {each.key_hash for each in left}:
            mine = [each.id for each in left if each.key_hash == key_hash]
            assert [each for each in mine if each in sent] == mine[: len(set(mine) & sent)]
        assert sent or all((each.key_hash or 0) % PARTITIONS in blocked for each in left)
        left = [each for each in left if each.id not in sent]
        blocked = set()


def test_rows_without_keys_go_by_topic() -> None:
    """Each topic has its own batches, which are full; rows to be sent alone are alone."""
    rows = [row(n, key_hash=None, topic="ab"[n % 2], alone=n == 4) for n in range(7)]
    assert ids(plan_keyless(rows, messages_max=2, bytes_max=100)) == [[0, 2], [1, 3], [4], [5], [6]]


def buckets(owners: dict[int, tuple[str, int, int]]) -> list[BucketRow]:
    """Return all buckets' rows: owner, epoch, expiry; else free."""
    return [BucketRow(n, *owners.get(n, ("", 0, 0))) for n in range(BUCKETS)]


def leases(
    rows: list[BucketRow], held: dict[int, int], members: set[str], *, is_first: bool = False
) -> tuple[list[int], list[int], list[int]]:
    """Return the buckets that the relay `a` keeps, releases and claims at time 100."""
    found = plan_leases(rows, owner="a", held=held, members=members, now_ms=100, is_first=is_first)
    return found.keep, found.release, found.claim


def test_a_lone_relay_takes_all_buckets() -> None:
    """A relay without others claims each bucket."""
    assert leases(buckets({}), {}, {"a"}) == ([], [], list(range(BUCKETS)))


def test_relays_share_and_make_room_for_a_newcomer() -> None:
    """A relay with more than its share releases buckets, and claims none."""
    rows = buckets(dict.fromkeys(range(BUCKETS), ("a", 1, 200)))
    keep, release, claim = leases(rows, dict.fromkeys(range(BUCKETS), 1), {"a", "b"})
    assert (len(keep), len(release), claim) == (BUCKETS // 2, BUCKETS // 2, [])
    assert sorted(keep + release) == list(range(BUCKETS))


def test_another_relays_lease_is_respected_until_it_expires() -> None:
    """At time 100 a lease that expires at 101 is not claimed; one that expires at 100 is."""
    rows = buckets({0: ("b", 3, 101), 1: ("b", 3, 100)})
    assert leases(rows, {}, {"a", "b"})[2][:2] == [1, 2]


def test_a_lease_at_another_epoch_is_not_held() -> None:
    """A relay of the same name took it, or it was lost and taken back: it is not kept."""
    rows = buckets({0: ("a", 2, 200)})
    keep, _, claim = leases(rows, {0: 1}, {"a"})
    assert 0 not in keep + claim


def test_a_restarted_relay_takes_over_from_its_own_name_at_once() -> None:
    """Its first plan claims leases of its own name; later plans do not."""
    rows = buckets({0: ("a", 2, 200)})
    assert 0 in leases(rows, {}, {"a"}, is_first=True)[2]
    assert 0 not in leases(rows, {}, {"a"})[2]


@given(st.sets(st.sampled_from("abcdefg"), min_size=1))
def test_shares_add_up(members: set[str]) -> None:
    """Any number of relays claim all buckets together; their shares differ by one at most."""
    shares = [
        len(
            plan_leases(
                buckets({}), owner=each, held={}, members=members, now_ms=100, is_first=False
            ).claim
        )
        for each in members
    ]
    assert sum(shares) == BUCKETS
    assert max(shares) - min(shares) <= 1


def test_the_retry_delay_of_a_row_grows() -> None:
    """The wait doubles from retry_ms_min up to retry_ms_max."""
    config = RelayConfig(retry_ms_min=100, retry_ms_max=1_000)
    assert [config.retry_wait_ms(n) for n in (1, 2, 3, 4, 5, 99)] == [
        100,
        200,
        400,
        800,
        1000,
        1000,
    ]
