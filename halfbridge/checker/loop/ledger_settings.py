"""Derives the ledgers' settings from the daemon's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.checker.core.settings import LedgerSettings
from halfbridge.checker.loop.sizes import COPY_GROWTH_BYTES, SIGNATURE_GROWTH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfbridge.checker.config import CheckerConfig
    from halfbridge.checker.core.events import HalfRead
    from halfbridge.checker.loop.sizes import Sizes
    from halfbridge.checker.policy import Policy

_CODEC_PROPERTIES = ("compression.type", "compression.codec")


def ledger_settings(
    config: CheckerConfig, policy: Policy, sizes: Sizes, *, actor: str, signs: bool = False
) -> LedgerSettings:
    """Return the settings of a worker's ledgers; `LedgerSettings.shared_by` divides the budgets.

    Args:
        config: The daemon's settings.
        policy: Which group may deliver to which topics.
        sizes: The size limits of topics.
        actor: Name of the worker in its discards.
        signs: Whether copies are signed, which makes them longer.
    """
    growth_bytes = COPY_GROWTH_BYTES + (SIGNATURE_GROWTH_BYTES if signs else 0)

    def copy_fits(half: HalfRead) -> bool:
        return sizes.fits(config.names.half, half.size_bytes + growth_bytes)

    return LedgerSettings(
        transaction_timeout_ms=config.transaction_timeout_ms,
        check_interval_ms=config.check_interval_ms,
        check_count_max=config.check_count_max,
        transaction_age_ms_max=config.transaction_age_ms_max,
        check_backoff_ms_max=config.check_backoff_ms_max,
        republish_window_records=config.republish_window_records,
        republish_window_bytes=config.republish_window_bytes,
        ledger_bytes_max=config.ledger_bytes_max,
        entries_bytes_max=config.entries_bytes_max,
        unanswered_before_discard=config.unanswered_before_discard,
        readiness_before_discard_ms=config.readiness_before_discard_ms,
        actor=actor,
        allows=policy.allows,
        copy_fits=copy_fits,
    )


def known_limits(
    config: CheckerConfig, max_bytes: Callable[[str], int | None]
) -> Callable[[str], int | None]:
    """Return the function of topics' known limits; with compression it always returns None.

    A topic's limit applies to the compressed batch. With compression the size of a record says too
    little, and limits are learned from refusals (halfbridge.checker.loop.blame).
    """
    codecs = (config.kafka.get(name, "none") for name in _CODEC_PROPERTIES)
    return max_bytes if set(codecs) <= {"none"} else lambda _topic: None
