"""What all transactions of a producer share, while no broker answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from halfbridge.bridge.client_settings import writer_properties
from halfbridge.bridge.cluster import RealTopics
from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.errors import RetriableError
from halfbridge.bridge.kafka import system_ports
from halfbridge.bridge.shared import Shared
from halfbridge.serde.topic_shapes import HalfShape

_LIMIT_S = 1.0
_ASKERS = 8


def _shared() -> Shared:
    config = BridgeConfig(
        bootstrap_servers="127.0.0.1:1",
        producer_group="g",
        decision_timeout_ms=int(_LIMIT_S * 1_000),
    )
    ports = system_ports()
    writer = ports.kafka.writer(writer_properties(config, ports.clock, message_bytes_max=1_000_000))
    shape = HalfShape(partitions=1, record_bytes_max=1_000_000, replicas=1)
    real_topics = RealTopics(config, writer, ports, bound=())
    return Shared(config, writer, ports, half=shape, real_topics=real_topics)


def test_ends_are_asked_side_by_side() -> None:
    """Many threads that roll back, or answer, wait for their limit, not for each other's."""
    shared = _shared()
    began = monotonic()
    with ThreadPoolExecutor(_ASKERS) as pool:
        asked = [pool.submit(shared.half_end, 0) for _ in range(_ASKERS)]
        failures = [each.exception() for each in asked]
    assert [type(failure) for failure in failures] == [RetriableError] * _ASKERS
    assert monotonic() - began < _ASKERS * _LIMIT_S / 2
