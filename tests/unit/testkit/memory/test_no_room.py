"""Blocks of a fence while too many records are in flight: neither rows nor messages are left."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from halfbridge import BackpressureError, Message
from halfbridge.sql import AsyncFence
from halfbridge.testkit.memory import MemoryStack
from tests.unit.testkit.memory.shop import GROUP, TOPIC, Shop, come_back, go_away

# A record is in flight for the longer of both.
FULL = {"in_flight_max": 2, "send_timeout_ms": 1_000, "decision_timeout_ms": 20_000}


def test_a_block_without_room_is_rolled_back(
    halfbridge_memory: MemoryStack, tmp_path: Path
) -> None:
    """`send_async` raises BackpressureError; the next block, with room again, is delivered."""
    stack, shop = halfbridge_memory, Shop(tmp_path / "shop.db")
    stack.create_topic(TOPIC)
    with stack.producer(GROUP, checker=shop.fence.check, **FULL) as producer:
        shop.place(producer, "boots")
        go_away(stack, stack.config.names.half)
        open_tx = producer.begin()
        for _ in range(2):
            open_tx.send_async(Message(TOPIC, key=b"1", value=b"never"))
        with (
            pytest.raises(BackpressureError),
            shop.fence.transaction(producer) as (tx, connection),
        ):
            connection.execute(text("INSERT INTO placed VALUES ('shirts')"))
            tx.send_async(Message(TOPIC, key=b"1", value=b"shirts"))
        come_back(stack, stack.config.names.half)
        stack.advance(1)
        open_tx.rollback()
        shop.place(producer, "hat")
        stack.wait_until_decided()
        delivered = [each.value for each in stack.read_committed(TOPIC, count=2)]
        assert delivered == shop.placed() == [b"boots", b"hat"]
    shop.close()


def test_an_async_block_without_room_is_rolled_back(
    halfbridge_memory: MemoryStack, tmp_path: Path
) -> None:
    """The same on asyncio."""
    stack = halfbridge_memory
    stack.create_topic(TOPIC)
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    fence = AsyncFence(engine, producer_group=GROUP)

    async def main() -> list[str]:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE placed (what TEXT)"))
        await fence.create()
        async with stack.async_producer(GROUP, checker=fence.check, **FULL) as producer:

            async def place(what: str) -> None:
                async with fence.async_transaction(producer) as (tx, connection):
                    insert = text("INSERT INTO placed VALUES (:what)")
                    await connection.execute(insert, {"what": what})
                    await tx.send(Message(TOPIC, key=b"1", value=what.encode()))

            await place("boots")
            go_away(stack, stack.config.names.half)
            open_tx = producer.begin()
            never = Message(TOPIC, key=b"1", value=b"never")
            sends = [asyncio.create_task(open_tx.send(never)) for _ in range(2)]
            await asyncio.sleep(0.1)
            with pytest.raises(BackpressureError):
                await place("shirts")
            come_back(stack, stack.config.names.half)
            await asyncio.gather(*sends, return_exceptions=True)
            await open_tx.rollback()
            await place("hat")
            async with engine.connect() as connection:
                rows = await connection.execute(text("SELECT what FROM placed"))
                placed = [str(what) for what in rows.scalars()]
        await engine.dispose()
        return placed

    placed = stack.run(main())
    assert placed == ["boots", "hat"]
    delivered = [each.value for each in stack.read_committed(TOPIC, count=2)]
    assert delivered == [b"boots", b"hat"]
