"""The settings of topics as a broker tells them."""

from time import monotonic

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.clients import Questions
from halfbridge.checker.loop.topic_watch import TopicSettings
from halfbridge.kafka.adapter import system_ports
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker


def test_limits_of_internal_and_real_topics(installation: Installation) -> None:
    """A topic's own limit, a default of the broker, and none of a topic that is missing."""
    installation.make()
    names = installation.names
    installation.alter(names.half, max_message_bytes="2000000")
    small = installation.topic("small", max_message_bytes="1000")
    missing = installation.real("missing")
    config = CheckerConfig(bootstrap_servers=installation.servers, topic_prefix=names.prefix)
    settings = TopicSettings(Questions(config, system_ports()), (names.half, names.dead))

    def found() -> list[int | None]:
        settings.poll(monotonic())
        topics = (names.half, names.dead, small, installation.real("fence"), missing)
        return [settings.max_bytes(topic) for topic in topics]

    wanted = [2_000_000, 1_048_588 + 128 * 1024, 1_000, 1_048_588, None]
    until("all limits are known", lambda: found() == wanted)
