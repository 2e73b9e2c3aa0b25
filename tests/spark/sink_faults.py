"""The sink with faults in its driver's commit. Faults are files: there once, then gone."""

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
HANG = "hang"  # commit stands still between manifest and decisions, until it is killed
HANGS = "hangs"  # made by it, when it does
HANG_S = 600.0  # the fault itself, which the kill of the process ends


class InjectedError(Exception):
    """A fault."""


def faulty(directory: Path) -> type[TxnHalf]:
    """Return the sink under FORMAT, with faults from the files of `directory`."""
    where = str(directory)

    class Committer(BatchCommitter):
        """Fails where it is told to."""

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
            """Return one that fails where it is told to."""
            return Committer(self.options)

    class Faulty(TxnHalf):
        """The sink itself but for its commit."""

        @classmethod
        def name(cls) -> str:
            """Return another name, so that both are there."""
            return FORMAT

        def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802 (PySpark's name)
            """Return a writer with faults."""
            return Writer(super().streamWriter(schema, overwrite).options)

    return Faulty
