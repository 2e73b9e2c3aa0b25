"""What the running Spark can do, and what takes the place of what it lacks."""

import json
from typing import Any

import pytest

from halfbridge.spark_jobs import capabilities
from halfbridge.spark_jobs.capabilities import java_class, progress_of, require_data_sources
from halfbridge.spark_jobs.errors import JobError


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what is missing, the version that has it, and the one that runs."""
    monkeypatch.setattr(capabilities, "HAS_DATA_SOURCES", True)
    require_data_sources()
    monkeypatch.setattr(capabilities, "HAS_DATA_SOURCES", False)
    monkeypatch.setattr(capabilities.pyspark, "__version__", "3.5.9")
    with pytest.raises(JobError, match=r"Spark 4\.0 has them, Spark 3\.5\.9 does not") as raised:
        require_data_sources()
    assert "\n" not in str(raised.value)


class Report(dict[str, Any]):
    """A report as Spark 4 has it: a dictionary of objects, and its JSON."""

    json = json.dumps({"batchId": 7})


def test_progress_is_json_in_all_versions() -> None:
    """Spark 3.5 gives dictionaries that are JSON already."""
    assert progress_of({"batchId": 7}) == progress_of(Report(batchId=object())) == {"batchId": 7}


class Package:
    """What Py4J makes of a name that is no class: another package."""

    def __getattr__(self, name: str) -> Any:
        return Package()


def test_a_class_that_is_nowhere() -> None:
    """The error names the newest place."""
    with pytest.raises(JobError, match=r"has no class a\.New"):
        java_class(Package(), "a.New", "a.old.New")
