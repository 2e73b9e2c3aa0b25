"""The step tool on a real broker: client, worker and reader as processes."""

import pytest

from benchmarks.step_roles import StepsRun
from benchmarks.steps import STEPS, measure

pytestmark = [pytest.mark.broker, pytest.mark.long]
RATE, SECONDS = 50.0, 1.0


def test_every_transaction_passes_its_steps_in_order(
    kafka_bootstrap_servers: str, topic_prefix: str
) -> None:
    """All are seen; a kafka_txn begins after its decisions were taken, and its steps ascend."""
    run = StepsRun(
        bootstrap_servers=kafka_bootstrap_servers,
        topic_prefix=topic_prefix,
        real_topic=f"{topic_prefix}orders",
        pairs=2,
        partitions=2,
        rate=RATE,
        seconds=SECONDS,
        warmup_s=0.2,
    )
    whole = measure(run)
    assert len(whole) == int(RATE * SECONDS)
    taken = STEPS.index("decision taken by the worker") + 1
    for row in whole:
        # The worker may have a decision before its client has the acknowledgement.
        assert row[:3] == sorted(row[:3])
        assert row[1] <= row[taken]
        assert row[taken:-1] == sorted(row[taken:-1])
        assert row[-3] < row[-1]  # the reader may be quicker than the commit's acknowledgement
