"""Errors of the sink, split by who must act. Spark shows their text in its own exception.

SinkError
├─ SinkOptionError     (also ValueError) whoever wrote the query corrects an option
├─ SinkSetupError      an operator makes or mends a topic; the text names the command
├─ RowError            (also ValueError) a row cannot be sent; the query must not make such rows
├─ SendError           Kafka did not take the half messages; Spark runs the task or batch again
├─ CommitInDoubtError  the manifest or a decision was not acknowledged; restarting settles it
├─ AttemptGivenUpError the batch took too long and was given up; restarting runs it anew
├─ ReplayMismatchError the batch was published with other rows; the text says what to do
├─ PlanMismatchError   another checkpoint, or another plan in it; the text says what to do
├─ RefusedError        rows of earlier batches are dead letters; the text says what to do
├─ SearchLimitError    metrics read no further back; the app's next batch helps
├─ BatchOrderError     a later batch is published already; the text says what to do
└─ UnknownPastError    the batch before is not known; the text says what to do
"""

from __future__ import annotations


class SinkError(Exception):
    """The sink cannot do what it was told."""


class SinkOptionError(SinkError, ValueError):
    """An option is missing or wrong."""


class SinkSetupError(SinkError):
    """A topic is missing or has the wrong shape."""


class RowError(SinkError, ValueError):
    """A row, or the schema of all rows, cannot be sent as it is."""


class SendError(SinkError):
    """Half messages were not stored; nothing of them will be visible."""


class CommitInDoubtError(SinkError):
    """What decides the batch was sent, and may stand or not; running the batch again settles it."""


class AttemptGivenUpError(SinkError):
    """The attempts of this commit were rejected before it came; running the batch again helps."""


class ReplayMismatchError(SinkError):
    """This batch was published already, with other rows than now."""


class PlanMismatchError(SinkError):
    """This batch, or the one before it, was published by another plan than the checkpoint's."""


class RefusedError(SinkError):
    """Rows that were published became dead letters, and fail.on.refused is set."""


class SearchLimitError(SinkError):
    """What was looked for stands further back in the manifest topic than may be read for it."""


class BatchOrderError(SinkError):
    """This batch was never published, but a later one of the same app was."""


class UnknownPastError(SinkError):
    """A stream's manifests are somewhere else: whether this batch was published is not known."""
