"""The model keeps what a real broker keeps: one suite of checks, met by both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.contract import CHECKS, Kafka
from tests.simulation.model_kafka import ModelKafka
from tests.simulation.real_kafka import RealKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def real(kafka_bootstrap_servers: str, topic_prefix: str) -> Iterator[RealKafka]:
    """Yield a topic and a group of their own on a real broker."""
    kafka = RealKafka(kafka_bootstrap_servers, topic_prefix)
    yield kafka
    kafka.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_model_keeps_it(check: Callable[[Kafka], None]) -> None:
    """What the simulator takes for granted holds for its model."""
    check(ModelKafka())


@pytest.mark.broker
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_real_broker_keeps_it(check: Callable[[Kafka], None], real: RealKafka) -> None:
    """And for a broker."""
    check(real)
