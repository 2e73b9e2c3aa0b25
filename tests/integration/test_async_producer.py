"""The asynchronous client on a real broker."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import uvloop

from halfbridge import AsyncTransactionProducer, Message, MessageView, Resolution, State
from halfbridge.serde import OpKind, OpSource
from tests.integration.producing import GROUP, Cluster, request_of
from tests.kit.waiting import until

pytestmark = pytest.mark.broker


def _producer(cluster: Cluster, checker: Any, **given: Any) -> AsyncTransactionProducer:
    return AsyncTransactionProducer(
        checker=checker,
        bootstrap_servers=cluster.servers,
        producer_group=GROUP,
        topic_prefix=cluster.names.prefix,
        topics=[cluster.orders],
        **given,
    )


async def _unknown(_view: MessageView) -> Resolution:
    return Resolution.UNKNOWN


@pytest.mark.feature
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_many_tasks_send_and_decide_and_a_task_answers_a_check(
    cluster: Cluster, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Each message and each decision is there once; the answer of the check too."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def check(_view: MessageView) -> Resolution:
        loops.append(asyncio.get_running_loop())
        return Resolution.COMMIT

    async def main() -> None:
        async with _producer(cluster, check, in_flight_max=20) as producer:

            async def one(number: int) -> None:
                async with producer.begin() as tx:
                    await tx.send(Message(cluster.orders, key=b"%d" % number, value=b"v"))
                    if number % 10 == 9:
                        await tx.rollback()

            await asyncio.gather(*(one(number) for number in range(200)))
            await asyncio.to_thread(cluster.ask, request_of(cluster))
            await asyncio.to_thread(
                until, "the check is answered", lambda: producer.check_counts().answered
            )
            assert loops == [asyncio.get_running_loop()]
            assert await producer.flush() == 0
            assert producer.failed_decisions == 0

    with closing(new_loop()) as loop:
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
    assert len(cluster.read(cluster.names.half)) == 201
    kinds = Counter((op.kind, op.source) for _, op in cluster.ops())
    assert kinds == {
        (OpKind.COMMIT, OpSource.PRODUCER): 180,
        (OpKind.ROLLBACK, OpSource.PRODUCER): 20,
        (OpKind.COMMIT, OpSource.CHECK): 1,
    }


def test_a_loop_that_ends_without_close_leaves_no_decision_behind(cluster: Cluster) -> None:
    """The background thread continues to serve; sent messages are stored."""

    async def main() -> Any:
        producer = _producer(cluster, _unknown)
        await producer.start()
        async with producer.begin() as tx:
            await tx.send(Message(cluster.orders, value=b"v"))
        undecided = producer.begin()
        await undecided.send(Message(cluster.orders, value=b"w"))
        return producer, tx, undecided

    producer, tx, undecided = asyncio.run(main())
    ((_, op),) = cluster.ops(1)
    assert (op.transaction_id, op.kind) == (tx.id, OpKind.COMMIT)
    assert undecided.state is State.HALF_SENT
    producer._client.close()
