"""A worker whose topics are missing says so, with the command that makes them."""

from __future__ import annotations

import pytest

from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.loop.topic_watch import OWN_LOGGED_S, UNHEALTHY_S, OwnTopics
from halfbridge.checker.status import Status

CONFIG = CheckerConfig(bootstrap_servers="kafka:9092", topic_prefix="p.")
NAMES = CONFIG.names
ALL = {NAMES.half, NAMES.op, NAMES.dead}
COMMAND = "halfbridge topics create --bootstrap-servers kafka:9092 --topic-prefix p."


@pytest.fixture
def status() -> Status:
    """The health of a worker that is ready."""
    made = Status()
    made.set_ready(ready=True)
    return made


def test_a_missing_topic_is_an_error_at_once(
    status: Status, caplog: pytest.LogCaptureFixture
) -> None:
    """With the command that makes it; told again after a while, and not before."""
    own = OwnTopics(CONFIG, status)
    for now in (0.0, 2.0, OWN_LOGGED_S - 1):
        own.judge(ALL - {NAMES.half}, now)
    (line,) = caplog.messages
    assert NAMES.half in line
    assert NAMES.op not in line
    assert COMMAND in line
    own.judge(set(), OWN_LOGGED_S)
    assert len(caplog.messages) == 2


def test_health_turns_red_after_a_while(status: Status) -> None:
    """Topics may be made beside a daemon that starts; then nothing is wrong."""
    own = OwnTopics(CONFIG, status)
    own.judge(set(), 100.0)
    own.judge(set(), 100.0 + UNHEALTHY_S - 1)
    assert status.snapshot().all_well
    own.judge(set(), 100.0 + UNHEALTHY_S)
    assert not status.snapshot().all_well
    assert COMMAND in status.snapshot().reason
    own.judge(ALL, 140.0)
    assert status.snapshot().all_well
    own.judge(set(), 200.0)
    assert status.snapshot().all_well
