"""Blocks of a fence are spans, with spans of their sends, statements and decisions."""

from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode
from sqlalchemy import create_engine

from halfbridge import Message
from halfbridge.bridge import AsyncTransaction
from halfbridge.bridge.tracing import OpenTelemetryTracing
from halfbridge.sql import Fence
from halfbridge.testkit.memory import MemoryStack
from tests.sql.async_fence_scene import MESSAGE, on_drivers, run, scene_on, work
from tests.sql.databases import Database
from tests.unit.bridge.test_tracing import EXPORTER, no_spans, parents, provider, spans

__all__ = ["no_spans", "provider"]  # fixtures
GROUP = "order-service"


class BrokenError(Exception):
    """An error that a block raises."""


def test_a_block_is_a_span_with_its_sends_statements_and_decision(tmp_path: Path) -> None:
    """The span is like that of `producer.begin()`; an error is its status."""
    tracer = trace.get_tracer("driver")
    engine = create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    fence = Fence(engine, producer_group=GROUP)
    fence.create()
    with MemoryStack() as stack:
        topic = stack.create_topic("orders")
        tracing = OpenTelemetryTracing()
        with stack.producer(GROUP, checker=fence.check, tracing=tracing) as producer:
            with (
                tracer.start_as_current_span("POST /orders"),
                fence.transaction(producer) as (tx, connection),
            ):
                tx.send(Message(topic, value=b"two shirts"))
                with tracer.start_as_current_span("CREATE"):
                    connection.exec_driver_sql("CREATE TABLE placed (what TEXT)")
            assert len(stack.read_committed(topic, count=1)) == 1
            assert parents() == {
                "POST /orders": None,
                "transaction": "POST /orders",
                "send orders": "transaction",
                "CREATE": "transaction",
                "commit": "transaction",
            }
            EXPORTER.clear()
            with pytest.raises(BrokenError), fence.transaction(producer) as (tx, _):
                tx.send(Message(topic, value=b"a hat"))
                raise BrokenError
            assert tx.decision is not None
            tx.decision.result()
            assert trace.get_current_span() is trace.INVALID_SPAN
            assert parents() == {
                "transaction": None,
                "send orders": "transaction",
                "rollback": "transaction",
            }
            assert spans()["transaction"].status.status_code is StatusCode.ERROR
    engine.dispose()


@on_drivers("sqlite")
def test_an_asynchronous_block_is_a_span(database: Database, driver: str) -> None:
    """The span is current in the block, and not after it."""
    tracing = OpenTelemetryTracing()

    async def main() -> None:
        async with scene_on(database, driver) as scene:
            client = scene.producer

            def begin(**given: object) -> AsyncTransaction:
                # As AsyncTransactionProducer does it.
                traced = tracing.transaction(client._shared, **given)
                return AsyncTransaction(traced, client._waits)

            client.begin = begin
            async with scene.block() as (tx, connection):
                await tx.send(MESSAGE)
                with trace.get_tracer("driver").start_as_current_span("INSERT"):
                    await work(connection, 1)
            await tx.decided()
            assert trace.get_current_span() is trace.INVALID_SPAN

    run(main)
    assert parents() == {
        "transaction": None,
        "send orders": "transaction",
        "INSERT": "transaction",
        "commit": "transaction",
    }
