"""What Spark's verdict on a demo run says."""

from __future__ import annotations

import pytest

from halfbridge.demo.spark import SparkResult

CLEAN = {"clean": True, "violations": 0, "transactions": {"all": 200}}
DIRTY = {**CLEAN, "clean": False, "violations": 3}


def test_all_is_well() -> None:
    """One line with the numbers; the JSON has them too."""
    result = SparkResult(rows=180, differing=0, audit=CLEAN)
    assert result.ok
    assert result.line().startswith("OK by Spark: 180 rows read; audit of 200 transactions: 0")
    assert result.to_json() == {
        "ok": True,
        "rows": 180,
        "differing": 0,
        "transactions": {"all": 200},
        "findings": 0,
    }


@pytest.mark.parametrize(("differing", "audit"), [(1, CLEAN), (0, DIRTY)])
def test_either_makes_it_fail(differing: int, audit: dict[str, object]) -> None:
    """Rows that the demo's consumer saw otherwise, or a finding of the audit."""
    result = SparkResult(rows=180, differing=differing, audit=audit)
    assert not result.ok
    assert result.line().startswith("FAILED by Spark")
