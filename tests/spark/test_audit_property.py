"""Random lives, defects included: the audit finds what plain Python finds, and nothing else."""

import os

import pytest
from pyspark.sql import SparkSession

from halfbridge.spark_jobs.audit.findings import VIOLATIONS
from halfbridge.spark_jobs.audit.run import audited
from tests.spark.audit_lives import Lives
from tests.spark.audit_oracle import expected
from tests.spark.marks import INTERPRETED

pytestmark = INTERPRETED


SEEDS = [int(each) for each in os.environ.get("HALFBRIDGE_AUDIT_SEEDS", "1 2").split()]
LIVES = 250


@pytest.mark.parametrize(
    "seed", [SEEDS[0], *(pytest.param(each, marks=pytest.mark.spark_long) for each in SEEDS[1:])]
)
def test_audit_finds_what_the_oracle_finds(spark: SparkSession, seed: int) -> None:
    """Every transaction with something wrong, each kind; none of the others."""
    print(f"HALFBRIDGE_AUDIT_SEEDS={seed}")
    tape = Lives(seed).play(LIVES)
    wanted = expected(tape)
    assert len({kind for kind, _ in wanted}) >= 5, "the lives are too orderly to show anything"
    with audited(tape.facts(spark), tape.bounds()) as audit:
        rows = audit.findings.collect()
        assert sum(audit.states.values()) == LIVES
    found = {(row["kind"], row["transaction_id"]) for row in rows if row["kind"] in VIOLATIONS}
    assert found == wanted
