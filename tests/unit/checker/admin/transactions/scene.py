"""An operator who reads an installation in memory."""

from typing import Any

from halfbridge import Message, MessageView, Resolution
from halfbridge.bridge.message_transaction import Transaction
from halfbridge.checker.admin.cluster import judging_cluster
from halfbridge.checker.admin.transactions.life import Life
from halfbridge.checker.admin.transactions.look_up import Wanted, look_up
from halfbridge.checker.admin.transactions.undecided import Filter, Listing, list_undecided
from halfbridge.serde.avro import HALF_METADATA, OP
from halfbridge.serde.headers import HALF
from halfbridge.serde.records import OpKind
from halfbridge.testkit.memory import MemoryStack
from halfbridge.testkit.memory.log import Row
from halfbridge.testkit.memory.programs import MemoryProducer
from tests.kit.records import A_HALF, AN_OP

TOPIC = "orders"
GROUP = "order-service"


def unknown(_: MessageView) -> Resolution:
    """Return UNKNOWN."""
    return Resolution.UNKNOWN


def sent(producer: MemoryProducer, *values: bytes, key: bytes = b"k") -> Transaction:
    """Send messages of one transaction without a decision."""
    tx = producer.begin()
    for value in values:
        tx.send(Message(TOPIC, key=key, value=value))
    return tx


class Operator:
    """Reads an installation through its own clients."""

    def __init__(self, stack: MemoryStack) -> None:
        self.names = stack.config.names
        self._machine = stack.machine
        ports = stack.machine.ports(stack.machine.process("operator"))
        self.cluster = judging_cluster(stack.config, ports)

    def listed(self, **wanted: Any) -> Listing:
        """Return what `tx list` shows."""
        return list_undecided(self.cluster, self.names, Filter(**wanted))

    def shown(self, transaction_id: str, **wanted: Any) -> Life:
        """Return what `tx show` shows."""
        return look_up(self.cluster, self.names, Wanted(id=transaction_id, **wanted))

    def write_op(self, kind: OpKind, transaction_id: str, partition: int, **given: Any) -> int:
        """Append an op as another client would; return its offset."""
        op = AN_OP._replace(
            **{
                "transaction_id": transaction_id,
                "kind": kind,
                "producer_group": GROUP,
                "half_offset": 0,
                "message_count": -1,
                **given,
            }
        )
        return self._append(self.names.op, partition, OP.encode(op), [])

    def write_half(self, transaction_id: str, partition: int, **given: Any) -> int:
        """Append a half record as another client would; return its offset."""
        half = A_HALF._replace(
            **{
                "transaction_id": transaction_id,
                "producer_group": GROUP,
                "real_topic": TOPIC,
                **given,
            }
        )
        return self._append(
            self.names.half, partition, b"value", [(HALF, HALF_METADATA.encode(half))]
        )

    def write_junk(self, topic: str, partition: int, value: bytes, headers: Any = None) -> int:
        """Append a record that halfbridge did not write; return its offset."""
        return self._append(topic, partition, value, headers or [])

    def _append(self, topic: str, partition: int, value: bytes, headers: Any) -> int:
        broker = self._machine.broker
        offset = broker.partition((topic, partition)).append(
            [Row(b"key", value, headers, broker.now_ms)], broker.now_ms, is_stamped=True
        )
        broker.changed()
        return offset
