"""Who is told that two services use one producer group."""

from __future__ import annotations

import pytest

from halfbridge.bridge.check_responder import TOLD_S, TOPICS_MAX, SharedGroup
from tests.fake_ports import Clock
from tests.kit.records import A_REQUEST

REQUEST = A_REQUEST._replace(producer_group="shop", real_topic="orders")


def test_each_topic_is_told_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """The line names transaction, topic and group, and what to do."""
    clock = Clock()
    group = SharedGroup("shop", clock)
    for _ in range(3):
        group.note(REQUEST)
    (line,) = caplog.messages
    for text in (REQUEST.transaction_id, "orders", "shop", "a producer group of its own"):
        assert text in line
    clock.now += TOLD_S
    group.note(REQUEST)
    assert len(caplog.messages) == 2


def test_requests_of_other_groups_and_invented_topics_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever may write check requests writes any name into them."""
    group = SharedGroup("shop", Clock())
    group.note(REQUEST._replace(producer_group="other"))
    assert caplog.messages == []
    for number in range(TOPICS_MAX + 5):
        group.note(REQUEST._replace(real_topic=f"topic-{number}"))
    assert len(caplog.messages) == TOPICS_MAX
