"""Put back (DESIGN.md): undecided half messages, with counted answers and by the window."""

import pytest

from halfbridge.serde.headers import HALF, RESERVED, real_identity
from halfbridge.serde.records import OpKind
from tests.integration.installation import GROUP, Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

WINDOW = 100
HALF_AS_SENT = {
    "born_timestamp": 1_700_000_000_000,
    "resume_count": 0,
    "message_index": 0,
    "producer_group": GROUP,
    "real_partition": -1,
}


@pytest.mark.feature
def test_a_counted_unknown_puts_back(installation: Installation) -> None:
    """The copy is byte-exact and carries check_times, first append time and origin."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    daemon = installation.start()
    headers = [("h", b"1"), ("h", None)]
    half = installation.half(orders, key=None, value=b"\x00", headers=headers, immunity_ms=77)

    installation.answer_unknown(half, 1)
    installation.fence()
    installation.answer_unknown(half, 2)
    installation.fence()

    copies = installation.copies()
    assert [each.half.check_times for each in copies] == [1, 2]
    for copy in copies:
        assert (copy.key, copy.value) == (None, b"\x00")
        assert [each for each in copy.headers if each[0] != HALF] == headers
        original = HALF_AS_SENT | {
            "transaction_id": half.transaction_id,
            "real_topic": orders,
            "check_times": copy.half.check_times,
            "immunity_ms": 77,
            "first_append_timestamp": half.append_ms,
            "origin_offset": half.offset,
        }
        assert copy.half._asdict() == original
    daemon.counts("halfbridge_put_backs_total", 2, rule="answer")


def test_counted_answers_survive_a_restart(installation: Installation) -> None:
    """The number of the next check goes on where it stood."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    daemon = installation.start()
    half = installation.half(orders)
    installation.answer_unknown(half, 1)
    installation.answer_unknown(half, 2)
    installation.fence()
    daemon.stop()

    installation.start(transaction_timeout_ms=100, check_interval_ms=100, check_backoff_ms_max=100)

    assert {each.check.check_number for each in installation.checks(2)} == {3}


def test_the_window_stays_bounded(installation: Installation) -> None:
    """Behind an old undecided half the window is kept small by copies, at most a third of all."""
    installation.make()
    orders = installation.topic("orders")
    settings = {"republish_window_records": WINDOW, "batch_records_max": 20}
    daemon = installation.start(**settings)
    old = installation.half(orders, key=b"old", value=b"\x00old", headers=[("h", None)])
    last = installation.half(orders, old.transaction_id, value=b"2", message_index=1)
    passed = 4 * WINDOW
    for _ in range(passed):
        installation.pass_through(orders, key=b"young")

    installation.tail(orders).until(passed)
    copies = until("the old one is put back", installation.copies)

    assert len(copies) % 2 == 0
    assert len(copies) <= passed / 3
    assert {each.half.transaction_id for each in copies} == {old.transaction_id}
    assert {each.half.check_times for each in copies} == {0}
    until("H follows", lambda: installation.progress().half > last.offset)
    assert daemon.metric("halfbridge_put_backs_total", rule="window") == len(installation.copies())

    daemon.stop()
    daemon = installation.start(**settings)
    installation.op(OpKind.COMMIT, last, message_count=2)
    delivered = installation.tail(orders).until(passed + 2)[-2:]
    theirs = [[given for given in each.headers if given[0] not in RESERVED] for each in delivered]
    assert [(each.key, each.value) for each in delivered] == [(b"old", b"\x00old"), (b"key", b"2")]
    assert theirs == [[("h", None)], []]
    assert [real_identity(each.headers) for each in delivered] == [
        (old.transaction_id, 0),
        (old.transaction_id, 1),
    ]
    progress = installation.progress()
    assert progress.position - progress.half <= 2 * WINDOW
