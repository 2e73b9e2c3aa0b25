"""Do the work of each message once with aiokafka: an inbox in the database, and then the offset."""

import asyncio
import os
from contextlib import suppress

# aiokafka has no types (no py.typed).
from aiokafka import AIOKafkaConsumer, ConsumerRecord  # type: ignore[import-untyped]
from aiokafka.errors import CommitFailedError  # type: ignore[import-untyped]
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from halfbridge.sql import AsyncInbox

engine = create_async_engine(os.environ.get("SHOP_URL", "sqlite+aiosqlite:///parcels.db"))
inbox = AsyncInbox(engine, group_id="parcels")


async def pack(order: ConsumerRecord, item: str) -> bool:
    """Note a parcel for an order; return whether the order is new. Both commit, or neither."""
    async with engine.begin() as connection:
        is_new = await inbox.once(connection, order)
        if is_new:
            await connection.execute(text("INSERT INTO parcels VALUES (:item)"), {"item": item})
    return is_new


async def main() -> None:
    """Take orders until an error or a signal ends the process; the next one takes the rest."""
    async with engine.begin() as connection:
        await connection.execute(text("CREATE TABLE IF NOT EXISTS parcels (item VARCHAR(99))"))
    await inbox.create()
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
        group_id="parcels",
        # A process that is started again has its partitions back at once; each has its own name.
        group_instance_id=os.environ.get("SHOP_INSTANCE", "parcels-1"),
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    async with consumer:
        async for order in consumer:
            item = (order.value or b"").decode()
            is_new = await pack(order, item)
            print("packed:" if is_new else "packed before:", item)
            with suppress(CommitFailedError):  # the partition has moved: the order comes again
                await consumer.commit()


asyncio.run(main())
