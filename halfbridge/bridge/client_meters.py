"""The figures of producers in this process, as instruments of OpenTelemetry.

Loaded by `TransactionProducer.register_meters`; nothing else imports it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from halfbridge.bridge.client_metrics import DESCRIPTIONS, families
from halfbridge.extras import needs

try:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(needs("meters", "opentelemetry"), name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from halfbridge.bridge.client_metrics import Source

_PREFIX = "halfbridge."


def register_meters(producers: Sequence[Source], provider: MeterProvider | None) -> None:
    """Register an instrument `halfbridge.client.*` for each of the metrics `halfbridge_client_*`.

    The provider asks for all figures when it exports. Attributes are the labels, as
    `halfbridge.producer_group`.
    """
    meter = get_meter("halfbridge", meter_provider=provider)
    for name, description in DESCRIPTIONS.items():
        make = (
            meter.create_observable_counter
            if description.is_counter
            else meter.create_observable_gauge
        )
        make(
            _PREFIX + "client." + name,
            callbacks=[partial(_observe, producers, name)],
            description=description.text,
        )


def _observe(producers: Sequence[Source], name: str, _: CallbackOptions) -> Iterable[Observation]:
    for labels, value in families(producers)[name]:
        yield Observation(value, {_PREFIX + label: text for label, text in labels.items()})
