"""Three brokers, and a network between them and everybody else that loses and delays."""

import time
from collections.abc import Callable

import pytest

from tests.faults.scene import Scene
from tests.kit.proxy import Act, Api, Rule

pytestmark = [pytest.mark.broker, pytest.mark.long]

# Six kafka_txn time-outs (5 s): commits of unknown outcome follow each other.
_ANSWERS_LOST_S = 30.0
# Twice the session of brokers and workers (6 s): others take over.
_ISOLATED_S = 12.0
# Three of these sessions, in which requests arrive and nobody hears of it.
_ASYMMETRIC_S = 20.0
_LATE_ROUNDS = 8
_LATE_MS = (20, 100, 300, 1000, 2500)


def _roles(scene: Scene) -> dict[str, Callable[[], int]]:
    return {
        "transaction coordinator": scene.transaction_coordinator,
        "group coordinator": scene.group_coordinator,
        "leader of a half partition": scene.half_leader,
        "leader of a real partition": scene.real_leader,
    }


def test_case_04_answers_to_commits_are_lost(three: Scene) -> None:
    """For 30 s every EndTxn arrives and none is answered: the commit is repeated, then the batch.

    The brokers commit what the daemon must take for undone.
    """
    three.begin()
    three.for_a_while(
        lambda: three.proxy.add(Rule(api=Api.END_TXN, act=Act.SWALLOW)),
        "answers to EndTxn lost for 30 s",
        lasts_s=_ANSWERS_LOST_S,
    )

    assert three.proxy.hits(Act.SWALLOW, Api.END_TXN) > 0
    three.finish()


def test_case_05_late_commits_meet_later_kafka_txns(three: Scene) -> None:
    """An EndTxn arrives after its repetition, while later kafka_txns run (KAFKA-17754).

    The connection is lost after it; the daemon repeats it on the next one, continues, and then the
    first one arrives. With the same epoch it would commit a kafka_txn that is not complete.
    """
    three.begin()
    for round_ in range(_LATE_ROUNDS):
        delay_ms = _LATE_MS[round_ % len(_LATE_MS)]
        rule = Rule(api=Api.END_TXN, act=Act.STRAND, delay_ms=delay_ms, times=3)
        three.hit(rule, "EndTxn late")

    three.finish()


def test_case_05_late_requests_of_a_kafka_txn(three: Scene) -> None:
    """The same with what comes before the commit: partitions and offsets added, offsets sent.

    Late, they would add to a kafka_txn that they do not belong to.
    """
    three.begin()
    apis = (Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.PRODUCE)
    for api in apis:
        for delay_ms in _LATE_MS:
            rule = Rule(api=api, act=Act.STRAND, delay_ms=delay_ms, times=2)
            three.hit(rule, f"{api.name} late")

    three.finish()


@pytest.mark.parametrize("how", ["cut", "blackhole"])
def test_case_26_isolated_by_role(three: Scene, how: str) -> None:
    """Nobody reaches the broker with one role, which stays what it is to the other brokers.

    Connections are refused, or they swallow everything; 12 s each, then deliveries go on.
    """
    three.begin()
    for role, find in _roles(three).items():
        node = find()
        isolate = three.proxy.cut if how == "cut" else three.proxy.blackhole
        three.for_a_while(
            lambda node=node, isolate=isolate: isolate(node),
            f"{role}: {how}",
            lasts_s=_ISOLATED_S,
        )

    three.finish()


def test_case_27_answers_are_dropped(three: Scene) -> None:
    """Requests arrive, answers do not: of each broker for 20 s, then of all of them.

    Nothing that was acknowledged is missing, and nothing unknown is counted as done.
    """
    three.begin()
    for node in three.cluster.node_ids:
        three.for_a_while(
            lambda node=node: three.proxy.drop_answers(node),
            "answers of one broker dropped for 20 s",
            lasts_s=_ASYMMETRIC_S,
        )
    three.for_a_while(
        three.proxy.drop_answers, "answers of all brokers dropped for 20 s", lasts_s=_ASYMMETRIC_S
    )

    assert three.proxy.counts()["answers lost"] > 0
    three.finish()


def test_a_slow_network(three: Scene) -> None:
    """Everything takes 100 ms more each way, then 400: slower, and still all of it."""
    three.begin()
    for delay_ms in (100, 400):
        three.proxy.delay(delay_ms)
        three.healed()
        time.sleep(_ISOLATED_S)
        three.note(f"everything {delay_ms} ms late, each way")
    three.proxy.heal()
    three.healed()

    three.finish()
