"""One transaction on an installation in memory, without pytest."""

from halfbridge import Message, Resolution
from halfbridge.testkit.memory import MemoryStack

with MemoryStack() as stack:
    topic = stack.create_topic("orders")
    with stack.producer("order-service", checker=lambda _: Resolution.ROLLBACK) as producer:
        with producer.begin() as tx:
            tx.send(Message(topic, key=b"customer-42", value=b"two shirts"))
        stack.wait_until_decided()
    assert [record.value for record in stack.read_committed(topic)] == [b"two shirts"]
