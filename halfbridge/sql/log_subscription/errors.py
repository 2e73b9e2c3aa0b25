"""Errors of reading a database's log, split by who must act.

LogSubscriptionError         (also BridgeError)
├─ ReadingStoppedError       nobody: the process is to end
├─ LogUnavailableError       nobody: the connection is lost, or another reader has the slot; the
│                            caller opens the source again, with back-off
├─ PositionTakenError        nobody: another relay was faster; read the position again
├─ OtherGroupError           (also ConfigError) whoever wrote the command names the producer group
│                            that has the subscription, or another subscription
├─ PositionMissingError      an operator says where a new subscription begins
├─ LogSettingsError          an operator changes the server's settings or the user's rights
├─ PositionLostError         an operator chooses where to begin anew: the log no longer reaches
│  │                         back to the position, so committed inserts may be missing
│  └─ SlotLostError          the same, for PostgreSQL's slot: dropped, invalidated or moved
├─ UnreadableChangeError     an operator: the log holds a change that cannot be read as inserts
├─ MappingError              (also ConfigError) whoever wrote mapping.toml corrects it
└─ InsertNotMappedError      whoever wrote mapping.toml: an insert does not fit; nothing is skipped
"""

from __future__ import annotations

from halfbridge.bridge.errors import BridgeError, ConfigError


class LogSubscriptionError(BridgeError):
    """A subscription to a database's log cannot go on as it is."""


class LogUnavailableError(LogSubscriptionError):
    """The log cannot be read now; open the source again later, from the last claimed position."""


class ReadingStoppedError(LogSubscriptionError):
    """The relay was told to stop while the server let wait; nothing was begun."""


class PositionTakenError(LogSubscriptionError):
    """Another relay has moved the subscription's row; nothing was claimed. Read it again."""


class OtherGroupError(LogSubscriptionError, ConfigError):
    """The subscription belongs to another producer group, whose checks answer for its messages."""


class PositionMissingError(LogSubscriptionError):
    """The subscription has no row yet, and nobody has said where it begins."""


class LogSettingsError(LogSubscriptionError):
    """The server's settings or the user's rights do not allow to read the log.

    The text names the setting or right and the value that is needed.
    """


class PositionLostError(LogSubscriptionError):
    """The log no longer reaches back to the position: inserts behind it may be missing.

    Nothing is guessed: a scan of the table would miss deleted rows and read changed ones. An
    operator begins the subscription anew, at "now" or at "snapshot".
    """


class SlotLostError(PositionLostError):
    """PostgreSQL's replication slot is gone, was invalidated, or stands beyond the position."""


class UnreadableChangeError(LogSubscriptionError):
    """The log holds a change of the table that does not say which rows were inserted.

    Statement format, a minimal row image, an XA transaction, a compressed event, or rows that were
    rolled back afterwards, on MariaDB. The text names the setting or the statement. An operator
    decides whether to begin anew.
    """


class MappingError(LogSubscriptionError, ConfigError):
    """A field of mapping.toml is wrong; the text names the file, the field and what is allowed."""


class InsertNotMappedError(LogSubscriptionError):
    """An insert has no place in the mapping: a null topic, or a column that it does not have.

    The subscription stops in front of the insert.

    Attributes:
        field: The mapping's field.
    """

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field
