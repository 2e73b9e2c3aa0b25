"""How ends of partitions are asked for while no broker answers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.daemon_settings import EndAsker
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import RetriableError

_LIMIT_S = 1.0
_ASKERS = 8


def test_ends_are_asked_side_by_side() -> None:
    """Many threads that roll back, or answer, wait for their limit, not for each other's."""
    config = BridgeConfig(
        bootstrap_servers="127.0.0.1:1",
        producer_group="g",
        decision_timeout_ms=int(_LIMIT_S * 1_000),
    )
    ends = EndAsker(config, system_ports())
    began = monotonic()
    with ThreadPoolExecutor(_ASKERS) as pool:
        asked = [pool.submit(ends.half_end, 0) for _ in range(_ASKERS)]
        failures = [each.exception() for each in asked]
    assert [type(failure) for failure in failures] == [RetriableError] * _ASKERS
    assert monotonic() - began < _ASKERS * _LIMIT_S / 2
