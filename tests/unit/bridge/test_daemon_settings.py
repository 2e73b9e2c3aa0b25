"""What differs between a client's assumptions and the daemon's limits."""

from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from halfbridge.bridge.config import BridgeConfig
from halfbridge.bridge.daemon_settings import EndAsker, differences
from halfbridge.checker.admin.transactions.waits import TOPIC_GONE_MS
from halfbridge.checker.config import CheckerConfig
from halfbridge.checker.process.settings_topic import limits_of
from halfbridge.kafka.adapter import system_ports
from halfbridge.kafka.errors import RetriableError
from halfbridge.serde.delivery import DELIVERY_LIMIT, Delivery
from halfbridge.serde.records import DaemonSettings

HOUR_MS = 3_600_000


def _config(**settings: Any) -> BridgeConfig:
    return BridgeConfig(bootstrap_servers="k:1", producer_group="g", **settings)


def test_defaults_of_client_and_daemon_agree() -> None:
    """Both with the settings that nobody gave, and with what is assumed without a record."""
    published = dict(limits_of(CheckerConfig(), "w-0").limits())
    # No limits of a client's.
    assert published.pop(DELIVERY_LIMIT) == Delivery.EXACTLY_ONCE.number
    assert published.pop("topic_gone_ms") == TOPIC_GONE_MS
    assert published == DaemonSettings().limits()
    assert differences(_config(), DaemonSettings()) == []


def test_settings_that_agree_are_no_difference() -> None:
    """However far from the defaults they are."""
    config = _config(transaction_timeout_ms=60_000, transaction_age_ms_max=200 * HOUR_MS)
    daemon = DaemonSettings(transaction_timeout_ms=60_000, transaction_age_ms_max=200 * HOUR_MS)
    assert differences(config, daemon) == []


@pytest.mark.parametrize("theirs", [1_000, 60_000])
def test_another_timeout_is_told(theirs: int) -> None:
    """With the setting to change, and what is wrong until then."""
    (text,) = differences(_config(), DaemonSettings(transaction_timeout_ms=theirs))
    assert f"is 6000 in this client and {theirs} in the daemon" in text
    assert f"set transaction_timeout_ms={theirs} (HALFBRIDGE_TRANSACTION_TIMEOUT_MS)" in text
    assert "`late`" in text


def test_a_shorter_age_of_the_daemon_endangers_long_immunities() -> None:
    """Half of it is the longest that leaves time for a check."""
    (text,) = differences(_config(), DaemonSettings(transaction_age_ms_max=2 * HOUR_MS))
    assert f"set transaction_age_ms_max={2 * HOUR_MS}" in text
    assert f"immunity of more than {HOUR_MS} ms may be discarded before anybody is asked" in text


def test_a_longer_age_of_the_daemon_is_not_used() -> None:
    """This client refuses what the daemon would take."""
    (text,) = differences(_config(), DaemonSettings(transaction_age_ms_max=200 * HOUR_MS))
    assert f"immunity of more than {36 * HOUR_MS} ms are refused" in text


@pytest.mark.parametrize(
    "name",
    ["metadata_bytes_max", "op_bytes_max", "transaction_messages_max", "transaction_bytes_max"],
)
def test_only_narrower_sizes_are_told(name: str) -> None:
    """What this client may write, such a daemon does not deliver; a wider one delivers it."""
    mine = DaemonSettings().limits()[name]
    (text,) = differences(_config(), DaemonSettings()._replace(**{name: mine - 1}))
    assert f"{name} is {mine} in this client and {mine - 1} in the daemon" in text
    assert differences(_config(), DaemonSettings()._replace(**{name: mine + 1})) == []


def test_checks_are_the_daemons_own_business() -> None:
    """The client assumes nothing of their interval and count, and nothing of later limits."""
    daemon = DaemonSettings(check_interval_ms=1, check_count_max=1, further={"later": 1})
    assert differences(_config(), daemon) == []


# --- how ends of partitions are asked for while no broker answers --------------------------

_LIMIT_S = 1.0
_ASKERS = 8


def test_ends_are_asked_side_by_side() -> None:
    """Many threads that roll back, or answer, wait for their limit, not for each other's."""
    config = BridgeConfig(
        bootstrap_servers="127.0.0.1:1",
        producer_group="g",
        decision_timeout_ms=int(_LIMIT_S * 1_000),
    )
    ends = EndAsker(config, system_ports())
    began = monotonic()
    with ThreadPoolExecutor(_ASKERS) as pool:
        asked = [pool.submit(ends.half_end, 0) for _ in range(_ASKERS)]
        failures = [each.exception() for each in asked]
    assert [type(failure) for failure in failures] == [RetriableError] * _ASKERS
    assert monotonic() - began < _ASKERS * _LIMIT_S / 2
