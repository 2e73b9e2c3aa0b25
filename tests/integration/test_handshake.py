"""Brokers that answer, and a client with another protocol: the error says why.

A question to the brokers only fails with "broker transport failure"; the reason, here a TLS
handshake with a listener that has no TLS, reaches the client's error callback, if anybody asks.
"""

import logging
import re
from collections.abc import Callable

import pytest

from halfbridge.bridge import Resolution, RetriableError, TransactionProducer
from halfbridge.checker.admin.cluster import Cluster
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.errors import AdminError
from halfbridge.checker.loop.clients import Questions
from halfbridge.checker.loop.failures import InputLostError
from halfbridge.kafka.adapter import system_ports

pytestmark = pytest.mark.broker

_TLS = {"security.protocol": "SSL"}
# librdkafka's words depend on what it reads first, the answer or the end of the connection: "SSL
# handshake failed: ..." or "SSL connection closed by peer (after 1ms in state SSL_HANDSHAKE)".
_REASON = re.compile("SSL handshake failed|SSL_HANDSHAKE")


def _ask(servers: str) -> None:
    config = CheckerConfig(bootstrap_servers=servers, kafka=_TLS)
    Questions(config, system_ports()).topics()


def _start(servers: str) -> None:
    TransactionProducer(
        bootstrap_servers=servers,
        producer_group="shop",
        checker=lambda _: Resolution.UNKNOWN,
        kafka=_TLS,
    ).start()


@pytest.mark.parametrize(("call", "error"), [(_ask, InputLostError), (_start, RetriableError)])
def test_a_worker_and_a_producer_log_why_no_broker_answers(
    kafka_bootstrap_servers: str,
    caplog: pytest.LogCaptureFixture,
    call: Callable[[str], None],
    error: type[Exception],
) -> None:
    """The line precedes the error, where an operator looks for it."""
    with caplog.at_level(logging.WARNING), pytest.raises(error):
        call(kafka_bootstrap_servers)
    assert any(_REASON.search(message) for message in caplog.messages), caplog.messages


def test_an_operators_command_says_why_no_broker_answers(kafka_bootstrap_servers: str) -> None:
    """It logs nothing: the error has the reason."""
    with pytest.raises(AdminError, match=_REASON):
        Cluster(kafka_bootstrap_servers, kafka=_TLS).broker_count()
