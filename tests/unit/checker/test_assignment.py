"""What a worker serves: limits of the worker are shared by its partition pairs."""

from __future__ import annotations

from dataclasses import replace

from checker.assignment import share_of
from tests.ledger_log import SETTINGS


def test_the_pairs_of_a_worker_share_its_memory() -> None:
    """Four ledgers held four times what the setting allows."""
    settings = replace(SETTINGS, ledger_bytes_max=1000)
    assert share_of(settings, 4) == replace(SETTINGS, ledger_bytes_max=250)
    assert share_of(settings, 1) == settings
