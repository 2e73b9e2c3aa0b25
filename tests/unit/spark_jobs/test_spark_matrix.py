"""The table that `make spark-matrix` prints."""

from tests.spark.matrix import markdown, results

REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase name="test_frames"/>
<testcase name="test_ingest[delta]"><failure message="boom"/></testcase>
<testcase name="test_audit"><error message="no broker"/></testcase>
<testcase name="test_sink_stream"><skipped message="refused: needs Spark 4.0"/></testcase>
</testsuite></testsuites>"""


def test_each_test_is_a_row_and_each_version_a_column() -> None:
    """A test that failed in its fixture has failed; one that is in no report was not run."""
    table = {"3.5.9": results(REPORT), "4.0.5": {"test_frames": "works"}}
    assert markdown(table) == [
        "|  | 3.5.9 | 4.0.5 |",
        "| --- | --- | --- |",
        "| frames | works | works |",
        "| ingest (delta) | **fails** | not run |",
        "| audit | **fails** | not run |",
        "| sink stream | refused: needs Spark 4.0 | not run |",
    ]
