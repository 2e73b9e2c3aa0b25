"""A worker without its topics logs so within 2 s, and serves once they exist."""

from time import monotonic

import pytest

from halfbridge.checker.loop import topic_watch
from tests.integration.daemon import Daemon
from tests.integration.installation import Installation
from tests.kit.waiting import until

pytestmark = pytest.mark.broker

LOGGED_WITHIN_S = 2.0


def test_a_worker_without_topics_says_so(
    installation: Installation, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error with the command that makes them, and then red health."""
    monkeypatch.setattr(topic_watch, "UNHEALTHY_S", 3.0)
    command = f"halfbridge topics create --bootstrap-servers {installation.servers}"
    daemon = Daemon(installation.config(), "w-0").start()
    try:
        began = monotonic()
        until("the command is logged", lambda: any(command in each for each in caplog.messages))
        assert monotonic() - began < LOGGED_WITHIN_S
        until("health is red", lambda: daemon.healthz()[0] == 503)
        assert command in daemon.healthz()[1]["reason"]
    finally:
        daemon.stop()
