"""Every finding, on histories that are written by hand: each scene is one transaction.

One audit judges them all, beside each other: a scene's findings must not depend on its neighbours.
"""

from collections import defaultdict

import pytest
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.audit.bounds import Bounds
from halfbridge.spark_jobs.audit.run import audited
from tests.spark.audit_scenes import SCENES, Scene
from tests.spark.marks import INTERPRETED
from tests.spark.tape import NAMES, ORDERS, Tape

pytestmark = INTERPRETED


@pytest.fixture(scope="module")
def found(spark: SparkSession, interpreted: None) -> dict[str, list[str]]:
    """Return the kinds found in each scene, and what was found beside them under `""`."""
    tape = Tape()
    scenes = {each.play(tape).txn: each.name for each in SCENES}
    kinds: dict[str, list[str]] = defaultdict(list)
    with audited(tape.facts(spark), Bounds(tape.snapshot())) as audit:
        for row in audit.findings.collect():
            kinds[scenes.get(row["transaction_id"], "")].append(row["kind"])
            assert row["offset"] is not None, row
            assert row["topic"] in {NAMES.half, NAMES.op, NAMES.dead, ORDERS, "invoices"}, row
        assert sum(audit.kinds.values()) == sum(len(each) for each in kinds.values())
    return {name: sorted(each) for name, each in kinds.items()}


@pytest.mark.parametrize("scene", [pytest.param(each, id=each.name) for each in SCENES])
def test_scene(found: dict[str, list[str]], scene: Scene) -> None:
    """Exactly what is wrong in a scene is found in it, nothing else, and each once."""
    assert found.get(scene.name, []) == list(scene.findings)


def test_nothing_is_found_outside_of_the_scenes(found: dict[str, list[str]]) -> None:
    """No finding names a transaction that there is none of."""
    assert "" not in found


@pytest.mark.spark_long
def test_a_repeat_is_a_notice_where_messages_may_be_repeated(
    spark: SparkSession, interpreted: None
) -> None:
    """At least once, what was delivered before is `repeated`; two dead letters stay wrong."""
    wanted = ("delivered_twice", "delivered_and_buried", "buried_twice")
    tape = Tape()
    scenes = {each.play(tape).txn: each.name for each in SCENES if each.name in wanted}
    with audited(tape.facts(spark), Bounds(tape.snapshot(), may_repeat=True)) as audit:
        kinds = {scenes[row["transaction_id"]]: row["kind"] for row in audit.findings.collect()}
        assert audit.violations == 2
    assert kinds == dict(zip(wanted, ("repeated", "duplicate", "duplicate"), strict=True))
