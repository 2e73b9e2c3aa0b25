"""What a reader finds in the logs of the brokers in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.events import HalfRead, JunkRead, OpRead
from halfbridge.serde.avro import OP
from halfbridge.serde.errors import DecodeError
from halfbridge.serde.headers import parse_half
from tests.ledger_log import Log
from tests.simulation.settings import NAMES

if TYPE_CHECKING:
    from halfbridge.testkit.memory.log import Partition, Record
    from tests.simulation.world import World


def visible(partition: Partition) -> list[Record]:
    """Return what a read_committed reader finds from offset zero on; deleted records too."""
    lso = partition.lso
    return [
        record
        for record in partition.slots[:lso]
        if record is not None and (record.txn is None or not record.txn.is_aborted)
    ]


def read_log(world: World, number: int) -> Log:
    """Return the half and op log of a partition, as a slow reader parses them."""
    log = Log()
    for record in visible(world.partition((NAMES.half, number))):
        offset, append_ms = record.offset(), record.timestamp()[1]
        if (NAMES.half, number, offset) in world.forged:
            log.half.append(JunkRead(offset, append_ms, "", 0, record))
            continue
        try:
            metadata, flaw = parse_half(record.headers())
        except DecodeError:
            log.half.append(JunkRead(offset, append_ms, "", 0, record))
        else:
            log.half.append(HalfRead(offset, append_ms, metadata, flaw, 0, record))
    for record in visible(world.partition((NAMES.op, number))):
        offset, append_ms = record.offset(), record.timestamp()[1]
        if (NAMES.op, number, offset) in world.forged:
            log.op.append(JunkRead(offset, append_ms, "", 0, record))
            continue
        try:
            op = OP.decode(record.value() or b"")
        except DecodeError:
            log.op.append(JunkRead(offset, append_ms, "", 0, record))
        else:
            log.op.append(OpRead(offset, append_ms, op))
    return log
