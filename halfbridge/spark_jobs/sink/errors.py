"""Errors of the sink, split by who must act. Spark shows their texts in its own exception.

SinkError              (BridgeError)
├─ SinkOptionError     (ConfigError) the author of the query corrects an option
├─ SinkSetupError      (TopicSetupError) an operator creates or corrects a topic; the text says how
├─ RowError            (InvalidMessageError) a row cannot be sent; the query must not make such rows
├─ SendError           (RetriableError) Kafka did not store the half messages; Spark runs the task
│                      again
├─ CommitInDoubtError  (OutcomeUnknownError) the manifest or a decision was not acknowledged;
│                      restarting settles the batch
├─ BatchError          batch `batch_id` of `app_id` is not published by this run
│  ├─ AttemptGivenUpError (RetriableError) the batch was too slow and was given up; restarting runs
│  │                      the batch again
│  ├─ ReplayMismatchError the batch was published with other rows; the text says what to do
│  ├─ PlanMismatchError   another checkpoint, or another plan in it; the text says what to do
│  ├─ BatchOrderError     a later batch is published already; the text says what to do
│  └─ UnknownPastError    the batch before is not known; the text says what to do
├─ RefusedError        rows of earlier batches are dead letters; the text says what to do
└─ SearchLimitError    metrics read no further back; it passes with the app's next batch
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from halfbridge.kafka.errors import (
    BridgeError,
    ConfigError,
    InvalidMessageError,
    KafkaFailure,
    OutcomeUnknownError,
    RetriableError,
    TopicSetupError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class SinkError(BridgeError):
    """The sink cannot do its work."""


class SinkOptionError(SinkError, ConfigError):
    """An option is missing or wrong."""

    def __init__(
        self, message: str, *, field: str = "", value: str = "", origin: str = "", allowed: str = ""
    ) -> None:
        super().__init__(field=field, value=value, origin=origin, allowed=allowed)
        self.args = (message,)


class SinkSetupError(SinkError, TopicSetupError):
    """A topic is missing or has the wrong shape."""


class RowError(SinkError, InvalidMessageError):
    """A row, or the schema of all rows, cannot be sent as it is."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message, field=field)


class SendError(SinkError, RetriableError):
    """Half messages were not stored; none of the task's rows will be visible."""


class CommitInDoubtError(SinkError, OutcomeUnknownError):
    """The manifest or a decision may be stored or not; a new run of the batch settles that."""


class BatchError(SinkError):
    """A batch is not published by this run, or was published by another one.

    Attributes:
        app_id: The stream's or the writer's app.id.
        batch_id: The batch's number in it.
    """

    def __init__(self, message: str, *, app_id: str = "", batch_id: int = -1) -> None:
        super().__init__(message)
        self.app_id = app_id
        self.batch_id = batch_id


class AttemptGivenUpError(BatchError, RetriableError):
    """The attempts of this commit were rejected before it; a new run publishes the batch."""


class ReplayMismatchError(BatchError):
    """This batch was published already, with different rows."""


class PlanMismatchError(BatchError):
    """This batch, or the one before, was published by a plan that is not the checkpoint's."""


class BatchOrderError(BatchError):
    """This batch was never published, but a later one of the same app was."""


class UnknownPastError(BatchError):
    """The stream's earlier manifests are missing, so this batch may be published already."""


class RefusedError(SinkError):
    """Published rows became dead letters, and fail.on.refused is set.

    Attributes:
        app_id: The app.id whose rows they are.
        refused_count: New dead letters since the batch before; 0 if only their count is in doubt.
    """

    def __init__(self, message: str, *, app_id: str = "", refused_count: int = 0) -> None:
        super().__init__(message)
        self.app_id = app_id
        self.refused_count = refused_count


class SearchLimitError(SinkError):
    """The progress of `app_id` lies further back in the manifest topic than may be read."""

    def __init__(self, message: str, *, app_id: str = "") -> None:
        super().__init__(message)
        self.app_id = app_id


@contextmanager
def failing_as(kind: type[SinkError], what: str) -> Iterator[None]:
    """Convert failures of Kafka and errors of bridge to errors of the sink, in a `with` block.

    A TopicSetupError becomes a SinkSetupError, an InvalidMessageError a RowError, a ConfigError a
    SinkOptionError, and any other failure a `kind` whose text begins with `what`.
    """
    try:
        yield
    except SinkError:
        raise
    except TopicSetupError as error:
        raise SinkSetupError(str(error), topics=error.topics) from error
    except InvalidMessageError as error:
        raise RowError(str(error), field=error.field) from error
    except ConfigError as error:
        raise SinkOptionError(f"a kafka. option is refused: {error.value}") from error
    except (KafkaFailure, BridgeError, BufferError) as error:
        raise kind(f"{what}: {error}") from error
