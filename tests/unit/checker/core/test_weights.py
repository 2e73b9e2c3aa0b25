"""Memory estimates compared with Python's allocation: never too low, not far too high."""

import gc
import tracemalloc
from collections.abc import Callable
from fnmatch import fnmatch

import pytest

from halfbridge.checker.core.events import HalfRead, JunkRead, OpRead, message_bytes
from halfbridge.checker.core.ledger import Ledger
from halfbridge.checker.core.plan import DeadHalf, DeadJunk, letter_bytes
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.progress import START
from halfbridge.serde.records import DeadReason, HalfMetadata, OpKind
from tests.ledger_log import SETTINGS, UNLIMITED, metadata, op_record

pytestmark = pytest.mark.more

COUNT = 1_000
BORN_MS = 1_700_000_000_000
# Maximum factor of an estimate: ASCII texts are counted with four bytes per character.
TOO_HIGH = 2.0
# Dataclasses are generated in code without a file.
OURS = ("*/checker/*", "*/serde/*", "*/tests/ledger_log.py", __file__, "<string>")
# Usual names, and the longest that fit a header of 4 KB, also in Python's widest text.
NAMES = pytest.mark.parametrize("text", ["", "x" * 1_200, "\N{GRINNING FACE}" + "x" * 1_200])


def rebuilt() -> Ledger:
    """Return a ledger that is rebuilt."""
    ledger = Ledger(SETTINGS, START)
    ledger.plan(0, records_max=UNLIMITED, size_bytes_max=UNLIMITED)
    return ledger


def measured(take: Callable[[], None]) -> int:
    """Return the bytes of memory that the code under test allocates in `take` and keeps.

    Leftover threads of other tests allocate too, in other files.
    """
    gc.collect()
    tracemalloc.start()
    try:
        take()
        gc.collect()
        files = tracemalloc.take_snapshot().statistics("filename")
    finally:
        tracemalloc.stop()
    return sum(
        file.size
        for file in files
        if any(fnmatch(file.traceback[0].filename, pattern) for pattern in OURS)
    )


def halves(text: str, *, messages: int = 1) -> list[bytes]:
    """Return encoded metadata of transactions; with `text`, each has different names."""
    reported = []
    for number in range(COUNT // messages):
        for index in range(messages):
            one = metadata(f"{number:032}", index)._replace(born_timestamp=BORN_MS + number)
            if text:
                one = one._replace(producer_group=text + str(number), real_topic=str(number) + text)
            reported.append(HALF_METADATA.encode(one))
            HALF_METADATA.decode(reported[-1])  # the codec's memo has its own bound
    return reported


def read_halves(ledger: Ledger, encoded: list[bytes]) -> None:
    """Give the ledger half records without bodies."""
    for offset, data in enumerate(encoded):
        reported = HALF_METADATA.decode(data)
        weight = message_bytes(reported)
        ledger.half(
            HalfRead(
                offset,
                BORN_MS + offset,
                reported,
                "",
                1_000 + offset,
                None,
                1_001 + offset,
                weight,
                1_002 + offset,
            )
        )


@NAMES
def test_undecided_transactions(text: str) -> None:
    """The estimate covers metadata and the places in tables and queues."""
    ledger, encoded = rebuilt(), halves(text)
    real = measured(lambda: read_halves(ledger, encoded))
    assert real <= ledger.memory.entries_bytes
    assert (text.isascii() and text) or ledger.memory.entries_bytes <= TOO_HIGH * real


def test_messages_of_one_transaction() -> None:
    """The estimate covers each message after the first one."""
    ledger, encoded = rebuilt(), halves("", messages=100)
    real = measured(lambda: read_halves(ledger, encoded))
    assert real <= ledger.memory.entries_bytes <= TOO_HIGH * real


@NAMES
def test_ops_that_wait(text: str) -> None:
    """The estimate covers ops that wait for an unread half record."""
    ledger = rebuilt()
    encoded = [
        OP.encode(
            op_record(f"{n:032}", OpKind.COMMIT, half_offset=n)._replace(
                timestamp=BORN_MS + n, reason=text + str(n) if text else ""
            )
        )
        for n in range(COUNT)
    ]
    for data in encoded:
        OP.decode(data)  # the codec's memo has its own bound

    def take() -> None:
        for offset, data in enumerate(encoded):
            ledger.op(OpRead(offset, BORN_MS + offset, OP.decode(data), len(data)))

    real = measured(take)
    assert real <= ledger.memory.ops_bytes == ledger.memory.entries_bytes
    assert (text.isascii() and text) or ledger.memory.ops_bytes <= TOO_HIGH * real


@pytest.mark.parametrize("has_gap", [False, True])
def test_decided_transactions(*, has_gap: bool) -> None:
    """The estimate covers decisions that a rebuild needs behind an undecided transaction.

    A transaction whose messages had a gap has each index in memory.
    """
    ledger = rebuilt()
    indices = range(0, 200, 2) if has_gap else range(1)
    reported = []
    for number in range(COUNT // len(indices)):
        for index in indices:
            one = metadata(f"{number:032}", index)._replace(born_timestamp=BORN_MS + number)
            reported.append(HALF_METADATA.encode(one))
            HALF_METADATA.decode(reported[-1])  # the codec's memo has its own bound
    ops = [
        OP.encode(op_record(f"{n:032}", OpKind.ROLLBACK, half_offset=0)._replace(timestamp=BORN_MS))
        for n in range(1, COUNT // len(indices))
    ]
    for data in ops:
        OP.decode(data)

    def take() -> None:
        read_halves(ledger, reported)
        for offset, data in enumerate(ops):
            ledger.op(OpRead(offset, BORN_MS + offset, OP.decode(data), len(data)))
        ledger.plan(BORN_MS, records_max=UNLIMITED, size_bytes_max=UNLIMITED)
        ledger.plan(BORN_MS, records_max=UNLIMITED, size_bytes_max=UNLIMITED)

    real = measured(take)
    assert ledger.held_halves == len(indices)
    assert real <= ledger.memory.entries_bytes <= TOO_HIGH * real


def test_letters() -> None:
    """The estimate covers waiting letters of late and unreadable records."""
    letters: list[DeadHalf | DeadJunk] = []

    def take() -> None:
        for number in range(COUNT):
            reported = HalfMetadata(*metadata(f"{number:032}"))  # allocated here, so that it counts
            weight = message_bytes(reported)
            one = HalfRead(number, BORN_MS, reported, "", 1_000, None, metadata_bytes=weight)
            letters.append(DeadHalf(one, DeadReason.LATE, f"{number} was late", 0, number, -1))
            record = JunkRead(number, BORN_MS, f"{number} is broken", 1_000, None)
            letters.append(DeadJunk(record, is_op=False))

    real = measured(take)
    assert real <= sum(map(letter_bytes, letters)) <= TOO_HIGH * real
