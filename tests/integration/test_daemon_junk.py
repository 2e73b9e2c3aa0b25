"""Foreign records in half and op topics: kept as dead letters once, and never in the way."""

import os
import uuid
from collections import Counter

import pytest

from halfbridge.bridge import Message, Resolution
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.admin.init import InitRequest, init_partition
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import (
    BORN_TIMESTAMP,
    CHECK,
    DEAD,
    HALF,
    INTERNAL,
    RESERVED,
    TRANSACTION_ID,
)
from halfbridge.serde.records import DeadReason
from tests.integration.foreign import write_raw
from tests.integration.installation import GROUP, Installation
from tests.integration.tail import Record

pytestmark = pytest.mark.broker

MEBIBYTE = 1024 * 1024
# Calls after which Python has specialised a loop, and checks less than before.
WARM = 20
UNKNOWN_SCHEMA = b"\xc3\x01" + b"\xab" * 8 + b"body"


def _sources(letters: list[Record]) -> list[tuple[str, int, int]]:
    return sorted(
        (each.dead.source_topic, each.dead.source_partition, each.dead.source_offset)
        for each in letters
    )


def _junk_halves(installation: Installation, orders: str) -> list[tuple[str, int, int]]:
    """Append unreadable half records of every kind; return their places."""
    good = installation.half_header(orders, uuid.uuid4().hex)
    header_lists: list[list[tuple[str, bytes | None]]] = [
        [],
        [("other", b"1")],
        [(HALF, None)],
        [(HALF, b"")],
        [(HALF, b"\xc3")],
        [(HALF, b"plain text, no marker")],
        [(HALF, UNKNOWN_SCHEMA)],
        [(HALF, good[:-3])],
        [(HALF, good + b"\x00")],
        [(HALF, good[:10] + b"\xff" * 40)],
        [(HALF, installation.half_header(orders, "x", message_index=-1))],
        [(HALF, installation.half_header("", "x"))],
        [(HALF, installation.half_header(orders, "x", producer_group=""))],
        [(DEAD, b"1"), (CHECK, b"2")],
    ]
    half = installation.names.half
    stored = [installation.write(half, b"junk", headers=each) for each in header_lists]
    stored.append(installation.write(half, None))
    stored.append(installation.write(half, b"", key=b""))
    stored.append(installation.write(half, os.urandom(MEBIBYTE - 1024)))
    return [(half, each.partition, each.offset) for each in stored]


def _junk_ops(installation: Installation) -> list[tuple[str, int, int]]:
    """Append unreadable ops of every kind; return their places."""
    op = installation.names.op
    half_bytes = HALF_METADATA.fingerprint
    values = [
        None,
        b"",
        b"\xc3",
        b"COMMIT",
        UNKNOWN_SCHEMA,
        b"\xc3\x01" + OP.fingerprint,
        b"\xc3\x01" + OP.fingerprint + b"\xff" * 64,
        b"\xc3\x01" + half_bytes + b"x",
        os.urandom(MEBIBYTE - 1024),
    ]
    stored = [installation.write(op, each, headers=[("h", b"1")]) for each in values]
    return [(op, each.partition, each.offset) for each in stored]


@pytest.mark.feature
def test_junk_is_kept_once_and_stops_nothing(installation: Installation) -> None:
    """Every unreadable record becomes one INVALID dead letter; transactions around it go on."""
    installation.make()
    orders = installation.topic("orders")
    daemon = installation.start()
    before = installation.pass_through(orders)
    wanted = sorted(_junk_halves(installation, orders) + _junk_ops(installation))
    after = installation.pass_through(orders)

    installation.await_marker()
    letters = installation.dead(len(wanted))

    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [before.transaction_id, after.transaction_id]
    assert _sources(installation.dead_letters()) == wanted
    assert {each.dead.reason for each in letters} == {DeadReason.INVALID}
    assert all(each.dead.detail for each in letters)
    daemon.counts("halfbridge_dead_letters_total", len(wanted), reason="INVALID")
    assert daemon.healthz()[0] == 200


def test_junk_is_kept_byte_exact(installation: Installation) -> None:
    """Key, value and headers of a dead letter are the record's own, followed by RMQ_DEAD."""
    installation.make()
    installation.start()
    big = os.urandom(MEBIBYTE - 1024)
    half, op = installation.names.half, installation.names.op
    installation.write(half, big, key=b"", headers=[("a", None), ("a", b""), (DEAD, b"forged")])
    installation.write(half, None)
    installation.write(op, b"\x00", key=b"\xff", headers=[("b", b"1")])

    letters = {
        (each.dead.source_topic, each.dead.source_offset): (each.key, each.value, each.headers[:-1])
        for each in installation.dead(3)
    }

    assert letters == {
        (half, 0): (b"", big, [("a", None), ("a", b""), (DEAD, b"forged")]),
        (half, 1): (None, None, []),
        (op, 0): (b"\xff", b"\x00", [("b", b"1")]),
    }


def test_more_junk_than_fits_into_memory(installation: Installation) -> None:
    """Batch by batch, each within its limits; what was let go is read again, byte-exact."""
    installation.make()
    orders = installation.topic("orders")
    half = installation.names.half
    values = [os.urandom(100 * 1024) for _ in range(40)]
    for value in values:
        installation.write(half, value, headers=[("a", None)])
    write_raw(installation.servers, half, b"body", [(b"\xff\xfe", b"1")])
    last = installation.pass_through(orders)
    daemon = installation.start(
        batch_records_max=3, batch_bytes_max=MEBIBYTE, ledger_bytes_max=MEBIBYTE
    )

    installation.await_marker()
    letters = installation.dead(len(values) + 1)

    assert [each.dead.source_offset for each in letters] == list(range(len(values) + 1))
    assert [each.value for each in letters] == [*values, b"body"]
    assert [each.headers[:-1] for each in letters] == [[("a", None)]] * len(values) + [[]]
    delivered = [each.transaction_id for each in installation.delivered(orders)]
    assert delivered == [last.transaction_id]
    assert daemon.metric("halfbridge_kafka_txn_failures_total") == 0


@pytest.mark.parametrize("topic", ["half", "op"])
def test_header_names_that_are_not_text(installation: Installation, topic: str) -> None:
    """A foreign client may write any bytes as a name: key and value are kept, nothing stops."""
    installation.make()
    orders = installation.topic("orders")
    name = {"half": installation.names.half, "op": installation.names.op}[topic]
    daemon = installation.start()
    for _ in range(WARM):
        installation.pass_through(orders)
        installation.write(name, b"text", headers=[("name", b"1")])
    write_raw(installation.servers, name, b"body", [(b"\xff\xfe", b"1"), (b"ok", b"2")])
    installation.pass_through(orders)

    installation.await_marker()
    letters = installation.dead(WARM + 1)

    assert len(installation.delivered(orders)) == WARM + 1
    assert [(each.value, each.dead.reason) for each in letters][-1] == (b"body", DeadReason.INVALID)
    assert daemon.metric("halfbridge_kafka_txn_failures_total") == 0


def test_the_operator_can_read_past_such_names(installation: Installation) -> None:
    """`checker init` reads the whole partition, foreign records included."""
    installation.make()
    orders = installation.topic("orders")
    for topic in (installation.names.half, orders, installation.names.dead):
        write_raw(installation.servers, topic, b"body", [(b"\xff", b"1")])
    half = installation.pass_through(orders)
    request = InitRequest(partition=0, dry_run=True)

    plan = init_partition(Cluster(installation.servers), installation.names, request)

    assert (plan.exact, plan.to_apply) == (True, (half.transaction_id,))


def test_a_check_request_with_such_names_is_skipped(installation: Installation) -> None:
    """The client's responder counts it as undecodable and answers the next one."""
    installation.make(groups=(GROUP,))
    orders = installation.topic("orders")
    for partition in range(4):
        write_raw(
            *(installation.servers, installation.names.check(GROUP), b"body"),
            *([(b"\xff", b"1")], partition),
        )
    installation.start(transaction_timeout_ms=100, check_interval_ms=100, check_backoff_ms_max=100)
    with installation.producer(lambda _: Resolution.COMMIT, topics=[orders]) as producer:
        producer.begin().send(Message(orders, value=b"v"))
        assert len(installation.tail(orders).until(1)) == 1
        assert producer.check_counts().errors == 0


def test_flawed_halves_are_never_delivered(installation: Installation) -> None:
    """Reserved names among the user's headers, or two RMQ_HALF: a commit dead-letters them."""
    installation.make()
    orders = installation.topic("orders")
    installation.start()
    wanted = []
    for name in sorted(RESERVED):
        half = installation.half(orders, headers=[("mine", b"1"), (name, b"forged")])
        if name not in INTERNAL:
            installation.commit(half)
            wanted.append(half.transaction_id)
    identity = uuid.uuid4().hex
    mine = (HALF, installation.half_header(orders, identity))
    twice = installation.write(
        installation.names.half, b"v", headers=[mine, mine], transaction_id=identity
    )
    installation.commit(twice)
    wanted.append(identity)

    installation.await_marker()
    letters = installation.dead(len(wanted))

    assert installation.delivered(orders) == []
    assert Counter(each.half.transaction_id for each in letters) == Counter(wanted)
    assert {each.dead.reason for each in letters} == {DeadReason.NOT_ALLOWED}
    assert {TRANSACTION_ID, BORN_TIMESTAMP} <= {
        name for each in letters for name, _ in each.headers
    }
