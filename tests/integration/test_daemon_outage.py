"""All brokers are away for a while, and come back."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from halfbridge.checker.loop import clients
from halfbridge.testkit.broker import EmbeddedBroker
from tests.integration.brokers import started
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

# Red is what failed several times in a row, and each time waits for answers.
NOTICED_S = 120.0
# A worker waits for an answer for 10 s usually, and needs half a minute then to become red.
_QUESTION_S = 2.0


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with started(EmbeddedBroker(), "no broker to kill") as made:
        yield made


def test_health_turns_green_again_with_nothing_to_do(
    broker: EmbeddedBroker, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a worker whose partition has nothing new, and of one in reserve, that has none."""
    monkeypatch.setattr(clients, "QUESTION_S", _QUESTION_S)
    with closing(Installation(broker.bootstrap_servers, topic_prefix)) as installation:
        installation.make()
        daemons = [installation.start(slot=f"w-{number}") for number in range(2)]
        installation.pass_through(installation.topic("orders"))
        installation.await_marker()

        broker.kill()
        until(
            "health is red",
            lambda: all(each.healthz()[0] == 503 for each in daemons),
            within_s=NOTICED_S,
        )
        broker.restart()

        until("health is green", lambda: all(each.healthz()[0] == 200 for each in daemons))
