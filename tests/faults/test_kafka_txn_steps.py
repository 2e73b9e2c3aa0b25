"""kafka_txns that end too early: at each of their steps, and a third of them at random."""

import os
import signal
from itertools import chain, repeat

import pytest
from confluent_kafka import KafkaError

from halfbridge.checker.process.slots import slot_ids
from tests.faults.scene import HEALED_S, SLOT, Scene
from tests.kit.proxy import Act, Api, Rule
from tests.kit.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.long]

# In the order in which a kafka_txn sends them.
_STEPS = (
    Api.ADD_PARTITIONS_TO_TXN,
    Api.PRODUCE,
    Api.ADD_OFFSETS_TO_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.END_TXN,
)
# Long enough that the worker is dead before the request continues: by that time
# the successor may have fenced it, or not.
_HELD_MS = 1500
_THIRD = 1 / 3
_ABORTS = 25


def test_case_03_killed_at_each_step(one: Scene) -> None:
    """One request of a worker is on its way when the worker dies, and arrives after its death.

    Each kind of request in a kafka_txn, of each worker in turn; then all workers die when a commit
    is done and its answer is not there yet.
    """
    one.begin()
    for step, worker in chain(zip(_STEPS, repeat(0), strict=False), ((_STEPS[-1], 1),)):
        slot = f"{SLOT}-{worker}"
        text = slot_ids(slot, topic_prefix=one.stage.prefix).transactional_id_prefix
        _hold(one, Rule(api=step, act=Act.HOLD, delay_ms=_HELD_MS, times=1, text=text))
        deaths = one.daemon.log().count(f"worker {slot} ended")
        os.kill(one.daemon.await_worker(slot), signal.SIGKILL)
        one.note(f"worker killed with a request held: {step.name}")
        until(
            f"the end of {slot}",
            lambda slot=slot, deaths=deaths: (
                one.daemon.log().count(f"worker {slot} ended") > deaths
            ),
            within_s=HEALED_S,
        )
        one.workers()
        one.healed()
    _hold(one, Rule(api=Api.END_TXN, act=Act.SWALLOW, times=1))
    for pid in one.workers():
        os.kill(pid, signal.SIGKILL)
    one.note("all workers killed behind a commit whose answer is lost")
    one.proxy.heal()
    one.healed()

    one.finish()


def _hold(scene: Scene, rule: Rule) -> None:
    """Return when the rule has hit a request."""
    api = Api(rule.api)
    before = scene.proxy.hits(rule.act, api)
    scene.proxy.add(rule)
    until(
        f"{rule.act.value} {api.name} {rule.text}",
        lambda: scene.proxy.hits(rule.act, api) > before,
        within_s=HEALED_S,
    )


def test_case_02_a_third_of_all_kafka_txns_are_aborted(one: Scene) -> None:
    """A third, drawn at random, is refused in the middle and aborted: each is written again, once.

    What is refused is that offsets are added, with a code that demands an abort.
    """
    one.begin()
    rule = Rule(
        api=Api.ADD_OFFSETS_TO_TXN,
        act=Act.REFUSE,
        error=KafkaError.GROUP_AUTHORIZATION_FAILED,
        share=_THIRD,
    )
    one.proxy.add(rule)
    until(
        "kafka_txns are aborted",
        lambda: one.proxy.hits(Act.REFUSE, Api.ADD_OFFSETS_TO_TXN) >= _ABORTS,
        within_s=3 * HEALED_S,
    )
    counts = one.proxy.counts()
    refused = counts[f"{Act.REFUSE.value}:{int(Api.ADD_OFFSETS_TO_TXN)}"]
    spared = counts[f"spared:{int(Api.ADD_OFFSETS_TO_TXN)}"]
    one.note("kafka_txn aborted in its middle", refused)
    one.proxy.heal()
    one.healed()

    # Not a retry each time of one unlucky kafka_txn: others went through in between.
    assert spared > refused / 2
    one.finish()
