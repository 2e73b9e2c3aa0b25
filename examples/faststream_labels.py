"""Do the work of each message once with FastStream: an inbox in the database, and then the offset.

On aiokafka the same program imports `faststream.kafka`, and needs nothing about stored offsets.
"""

import asyncio
import os
from typing import Annotated

from confluent_kafka import Message
from faststream import AckPolicy, Context, FastStream
from faststream.confluent import KafkaBroker, KafkaMessage
from faststream.confluent.annotations import Consumer
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from halfbridge.sql import AsyncInbox

engine = create_async_engine(os.environ.get("SHOP_URL", "sqlite+aiosqlite:///labels.db"))
inbox = AsyncInbox(engine, group_id="labels")
broker = KafkaBroker(
    os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    # By default the client stores an offset before the work, and FastStream may commit it although
    # the work has failed.
    config={"enable.auto.offset.store": False},
)
app = FastStream(broker)
Record = Annotated[Message, Context("message.raw_message")]


@app.on_startup
async def create() -> None:
    """Create the tables before the first message comes."""
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS labels (item VARCHAR(99))"))
    await inbox.create()


@broker.subscriber(
    "orders",
    group_id="labels",
    # A process that is started again has its partitions back at once; each has its own name.
    group_instance_id=os.environ.get("SHOP_INSTANCE", "labels-1"),
    auto_offset_reset="earliest",
    isolation_level="read_committed",
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
async def label(order: KafkaMessage, record: Record, consumer: Consumer) -> None:
    """Note a label for an order, once; FastStream commits the offset when this has returned."""
    item = order.body.decode()
    async with engine.begin() as connection:  # mark and work commit together, or neither
        is_new = await inbox.once(connection, order.raw_message)
        if is_new:
            await connection.execute(text("INSERT INTO labels VALUES (:item)"), {"item": item})
    print("labelled:" if is_new else "labelled before:", item)
    consumer.consumer.store_offsets(record)


if __name__ == "__main__":
    asyncio.run(app.run())
