"""Answers that carry an error code which no client knows."""

import pytest

from tests.faults.scene import Scene
from tests.kit.proxy import Act, Api, Rule

pytestmark = [pytest.mark.broker, pytest.mark.long]

_UNKNOWN = 9999  # Kafka's codes are a row from -1 to somewhat above 100
_TIMES = 2
# Answers to Produce concern half messages and decisions as well as deliveries.
_PRODUCE_TIMES = 12


def test_case_50_an_error_code_that_no_client_knows(one: Scene) -> None:
    """A broker does what a request asks for, and its answer cannot be understood.

    Each kind of request in a kafka_txn, and the heartbeat of a member, in turn. The daemon
    continues by itself; it takes nothing for done that was not, nor for undone that was.
    """
    one.begin()
    for api, times in (
        (Api.END_TXN, _TIMES),
        (Api.TXN_OFFSET_COMMIT, _TIMES),
        (Api.ADD_OFFSETS_TO_TXN, _TIMES),
        (Api.PRODUCE, _PRODUCE_TIMES),
        (Api.HEARTBEAT, _TIMES),
    ):
        rule = Rule(api=api, act=Act.FAIL, error=_UNKNOWN, times=times)
        one.hit(rule, f"answer to {api.name} with an unknown error code")

    one.finish()
