"""The sink with faults in its driver's commit. A fault is a file; firing deletes the file."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from halfbridge.serde.manifest import BatchManifest
from halfbridge.spark_jobs.sink.attempt import AttemptReport
from halfbridge.spark_jobs.sink.batch import BatchCommitter
from halfbridge.spark_jobs.sink.checkpoint import NO_PLAN, BatchPlan
from halfbridge.spark_jobs.sink.datasource import StreamWriter, TxnHalf

FORMAT = "txn_half_with_faults"
BEFORE_MANIFEST = "before-manifest"  # commit raises before it has done anything
AFTER_MANIFEST = "after-manifest"  # commit raises between manifest and decisions
HANG = "hang"  # commit hangs between manifest and decisions, until the process is killed
HANGS = "hangs"  # created when the commit hangs
HANG_S = 600.0  # longer than the process lives


class InjectedError(Exception):
    """A fault."""


def faulty(directory: Path) -> type[TxnHalf]:
    """Return the sink under FORMAT, with faults from the files of `directory`."""
    where = str(directory)

    class Committer(BatchCommitter):
        """Fails where a fault file exists."""

        def record(
            self, batch_id: int, reports: Sequence[AttemptReport], plan: BatchPlan = NO_PLAN
        ) -> BatchManifest:
            """Fail before or after the manifest."""
            raise_once(BEFORE_MANIFEST)
            winner = super().record(batch_id, reports, plan)
            raise_once(AFTER_MANIFEST)
            if Path(where, HANG).exists():
                Path(where, HANGS).touch()
                time.sleep(HANG_S)
            return winner

    def raise_once(fault: str) -> None:
        path = Path(where, fault)
        if path.exists():
            path.unlink()
            raise InjectedError(fault)

    class Writer(StreamWriter):
        """Commits with faults."""

        def committer(self) -> BatchCommitter:
            """Return the committer with faults."""
            return Committer(self.options)

    class Faulty(TxnHalf):
        """The sink, with faults in its commit."""

        @classmethod
        def name(cls) -> str:
            """Return another name, so that both sinks can be registered."""
            return FORMAT

        def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802 (PySpark's name)
            """Return a writer with faults."""
            return Writer(super().streamWriter(schema, overwrite).options)

    return Faulty
