"""All brokers are away for a while, and come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from halfbridge.testkit.broker import EmbeddedBroker
from halfbridge.testkit.pytest_plugin import leave_out
from spark_jobs.ivy import JarsError
from spark_jobs.jvm import JavaNotFoundError
from tests.integration.installation import Installation
from tests.integration.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.broker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """Yield a broker of its own, which the test may kill."""
    made = EmbeddedBroker()
    try:
        made.start()
    except (JarsError, JavaNotFoundError) as error:
        leave_out(f"no broker to kill: {error}")
    yield made
    made.stop()


def test_health_turns_green_again_with_nothing_to_do(
    broker: EmbeddedBroker, topic_prefix: str
) -> None:
    """Of a worker whose partition has nothing new, and of one in reserve, that has none."""
    installation = Installation(broker.bootstrap_servers, topic_prefix)
    try:
        installation.make()
        daemons = [installation.start(slot=f"w-{number}") for number in range(2)]
        installation.pass_through(installation.topic("orders"))
        installation.fence()

        broker.kill()
        until("health is red", lambda: all(each.healthz()[0] == 503 for each in daemons))
        broker.restart()

        until("health is green", lambda: all(each.healthz()[0] == 200 for each in daemons))
    finally:
        installation.close()
