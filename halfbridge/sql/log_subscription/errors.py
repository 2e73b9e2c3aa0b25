"""Errors of reading a database's log, divided by who must act.

LogSubscriptionError         (also BridgeError)
├─ ReadingStoppedError       nobody: the relay is stopping
├─ LogUnavailableError       nobody: the connection is lost, or another reader has the slot; the
│                            caller opens the source again, with back-off
├─ PositionTakenError        nobody: another relay has moved the position; read it again
├─ OtherGroupError           (also ConfigError) the user gives the subscription's producer group,
│                            or the name of another subscription
├─ PositionMissingError      an operator says where a new subscription begins
├─ LogSettingsError          an operator changes the server's settings or the user's rights
├─ PositionLostError         an operator chooses where to begin again: the log no longer contains
│  │                         the position, so committed inserts may be missing
│  └─ SlotLostError          the same, for PostgreSQL's slot: dropped, invalidated or moved
├─ UnreadableChangeError     an operator: the log has a change that cannot be read as inserts
├─ MappingError              (also ConfigError) the author of mapping.toml corrects it
└─ InsertNotMappedError      the author of mapping.toml: an insert does not fit; it is not skipped
"""

from __future__ import annotations

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from halfbridge.bridge.errors import (
    BridgeError,
    ConfigError,
    HalfNotStoredError,
    NoAnswerError,
    OutcomeUnknownError,
    RetriableError,
)
from halfbridge.sql.errors import FencedError, TransactionEndedError


class LogSubscriptionError(BridgeError):
    """A log subscription failed."""


class LogUnavailableError(LogSubscriptionError):
    """The log cannot be read now; open the source again later, from the last claimed position."""


class ReadingStoppedError(LogSubscriptionError):
    """The relay was stopped while it waited for the server; nothing was begun."""


class PositionTakenError(LogSubscriptionError):
    """Another relay has moved the subscription's row; nothing was claimed. Read it again."""


class OtherGroupError(LogSubscriptionError, ConfigError):
    """The subscription belongs to another producer group, whose checks answer for its messages."""


class PositionMissingError(LogSubscriptionError):
    """The subscription has no row yet, and --begin-at was not given."""


class LogSettingsError(LogSubscriptionError):
    """The server's settings or the user's rights do not allow to read the log.

    The text names the setting or right and the value that is needed.
    """


class PositionLostError(LogSubscriptionError):
    """The log no longer contains the position: inserts after the position may be missing.

    The relay does not read the table instead, because that would miss deleted rows and read changed
    rows. An operator begins the subscription again, at "now" or at "snapshot".

    Attributes:
        subscription: Name of the subscription; empty if the source of the log raises this error.
        position: The lost position, as its database writes positions; empty if `subscription` is.
    """

    def __init__(self, message: str, *, subscription: str = "", position: str = "") -> None:
        super().__init__(message)
        self.subscription = subscription
        self.position = position


class SlotLostError(PositionLostError):
    """PostgreSQL's replication slot was dropped, invalidated, or moved beyond the position."""


class UnreadableChangeError(LogSubscriptionError):
    """The log has a change of the table that does not contain the inserted rows.

    On MariaDB: statement format, a minimal row image, an XA transaction, a compressed event, or
    rows that were rolled back later. The text names the setting or the statement. An operator
    decides whether to begin again.
    """


class MappingError(LogSubscriptionError, ConfigError):
    """A field of mapping.toml is wrong; the text names the file, the field and what is allowed."""


class InsertNotMappedError(LogSubscriptionError):
    """An insert does not fit the mapping: its topic is null, or a column is missing.

    The subscription stops before the insert.

    Attributes:
        field: The mapping's field.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


# Errors that pass by themselves, or that another relay has caused: begin again from the row.
PASSING = (
    FencedError,
    HalfNotStoredError,
    LogUnavailableError,
    NoAnswerError,
    OutcomeUnknownError,
    PositionTakenError,
    RetriableError,
    InterfaceError,
    InternalError,
    OperationalError,
    PoolTimeoutError,
    TransactionEndedError,
)
