"""Errors of the daemon, and the exit statuses that a supervisor and a service manager see.

CheckerError (BridgeError)
├─ SlotError             no worker slot is free; the operator gives --slot or --state-dir
├─ SlotTakenError        another worker runs on this slot; the operator stops one of the two
├─ MetricsPortError      the port is taken; the operator gives another --metrics-port
└─ AdminError            a command could not be carried out; the text says what to do
   ├─ AdminRequestError  the caller changes the command: an id, a partition, an option
   ├─ AdminSetupError    an operator acts first: brokers, topics, rights, keys, a daemon to stop
   ├─ AdminRetriableError  the caller repeats the same command later; nothing has to change
   ├─ DamagedRecordError an operator repairs the partition of a record that cannot be read
   └─ InDoubtError       a record was sent and may be stored; the same command may be repeated
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.kafka.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_OK = 0  # as POSIX has it
EXIT_ERROR = 1  # unexpected: a restart may help
EXIT_CONFIG = 2  # configuration or usage: a restart does not help
EXIT_OPERATOR = 3  # an operator must correct something in the cluster first


class CheckerError(BridgeError):
    """The daemon cannot continue; `exit_code` is the exit status of its process."""

    exit_code = EXIT_ERROR


class SlotError(CheckerError):
    """No worker slot is free, or the slot's name is invalid."""

    exit_code = EXIT_CONFIG


class SlotTakenError(CheckerError):
    """A newer worker has taken over this slot; a restart would only take the slot back."""

    exit_code = EXIT_OPERATOR


class MetricsPortError(CheckerError):
    """The metrics server cannot listen on `port`."""

    exit_code = EXIT_CONFIG

    def __init__(self, message: str, *, port: int = 0) -> None:
        super().__init__(message)
        self.port = port


class AdminError(CheckerError):
    """A command could not be carried out; the text says what to do, and the subclass who acts.

    Attributes:
        topics: The topics that the error is about, if any.
        group: The producer or consumer group that it is about, or empty.
        transaction_id: The transaction that it is about, or empty.
    """

    def __init__(
        self,
        message: str,
        *,
        topics: Sequence[str] = (),
        group: str = "",
        transaction_id: str = "",
    ) -> None:
        super().__init__(message)
        self.topics = tuple(topics)
        self.group = group
        self.transaction_id = transaction_id


class AdminRequestError(AdminError):
    """The command cannot be carried out as it was given; the caller changes it."""


class AdminSetupError(AdminError):
    """The installation is not ready for the command; an operator acts, then it is repeated."""


class AdminRetriableError(AdminError):
    """The command did not end its work for now; the caller repeats the same command later."""


class DamagedRecordError(AdminError):
    """The record at `offset` of `place` is unreadable: mend the partition from another replica."""

    def __init__(self, place: tuple[str, int], offset: int, why: str = "") -> None:
        (topic, partition), cause = place, f" ({why})" if why else ""
        super().__init__(
            f"{topic}[{partition}]@{offset}: the record there is damaged{cause};"
            " repair the partition from another replica: docs/incidents/damaged-record.md",
            topics=(topic,),
        )
        self.place, self.offset = place, offset


class InDoubtError(AdminError):
    """A record was sent, and nobody knows whether the record is stored."""
