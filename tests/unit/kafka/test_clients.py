"""What a client's log says of its connections."""

import pytest

from halfbridge.kafka.clients import LostConnections

# Facility and message as librdkafka 2.16 words them; the first argument is the format.
LOST = (
    ("FAIL", "127.0.0.1:9092/1: Disconnected: connection reset by peer"),
    ("REQTMOUT", "127.0.0.1:9092/1: Timed out HeartbeatRequest in flight (after 10010ms)"),
    ("SESSTMOUT", "Consumer group session timed out (in join-state steady) after 10497 ms"),
)


@pytest.mark.parametrize(("facility", "message"), LOST)
def test_lost_connections_answers_and_sessions_are_reported(facility: str, message: str) -> None:
    """Each may be why a static member is fenced: not by another worker, but by itself."""
    reported: list[None] = []
    LostConnections(lambda: reported.append(None)).log(
        4, "%s [%s] %s", facility, "consumer-1", message
    )
    assert len(reported) == 1


def test_other_lines_are_not() -> None:
    """A client says a lot when it is well."""
    reported: list[None] = []
    LostConnections(lambda: reported.append(None)).log(
        6, "%s [%s] %s", "GETPID", "producer-1", "late"
    )
    assert not reported
