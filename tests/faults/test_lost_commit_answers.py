"""Commits whose answers are lost, and commits that arrive late; one broker, deterministic."""

import pytest

from tests.faults.scene import Scene
from tests.kit.proxy import Act, Api, Rule

pytestmark = pytest.mark.broker

_LATE_MS = 200
_TIMES = 2


@pytest.mark.parametrize("act", [pytest.param(Act.SWALLOW, marks=pytest.mark.long), Act.STRAND])
def test_commits_in_doubt(one: Scene, act: Act) -> None:
    """Exactly two EndTxn are hit: unanswered, or late, after their own repetition.

    A short case of 4 and 5 in docs/evidence/faults.md, with nothing left to chance.
    """
    one.begin("--kafka-txn-timeout-ms", "1000")
    name = "answer to EndTxn lost" if act is Act.SWALLOW else "EndTxn late"
    one.hit(Rule(api=Api.END_TXN, act=act, delay_ms=_LATE_MS, times=_TIMES), name)
    one.proxy.heal()

    one.finish()
