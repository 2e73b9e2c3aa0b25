"""Errors of the daemon, and the exit statuses that a supervisor and a service manager see.

CheckerError (BridgeError)
├─ SlotError             no worker slot can be had; the operator gives --slot or --state-dir
├─ SlotTakenError        another worker runs on this slot; the operator stops one of the two
├─ MetricsPortError      the port is taken; the operator gives another --metrics-port
└─ AdminError            topics or offsets could not be read or written; the text says what to do
"""

from __future__ import annotations

from halfbridge.bridge.errors import BridgeError

EXIT_OK = 0
EXIT_ERROR = 1  # unexpected: starting again may help
EXIT_CONFIG = 2  # configuration or usage: starting again does not help
EXIT_OPERATOR = 3  # something in the cluster must be set right by an operator first


class CheckerError(BridgeError):
    """The daemon cannot do what it should; `exit_code` is what its process ends with."""

    exit_code = EXIT_ERROR


class SlotError(CheckerError):
    """No worker slot can be had."""

    exit_code = EXIT_CONFIG


class SlotTakenError(CheckerError):
    """A newer worker took this slot over; starting again would take it back, and so on."""

    exit_code = EXIT_OPERATOR


class MetricsPortError(CheckerError):
    """The metrics port cannot be opened."""

    exit_code = EXIT_CONFIG


class AdminError(CheckerError):
    """An operator's command could not be carried out; the text says what to do."""
