"""What a TransactionProducer is made with: checked, and the settings put together."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfbridge.bridge.check_pool import is_async
from halfbridge.bridge.config import BridgeConfig, refuse_unknown
from halfbridge.kafka.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def check_arguments(checker: Callable[..., object], topics: Sequence[str]) -> None:
    """Check that `checker` can be called, and that `topics` is a list of names.

    Raises:
        ConfigError: the user corrects the argument.
    """
    if not callable(checker):
        allowed = "a callable that takes a MessageView and returns a Resolution"
        raise _refused("checker", checker, allowed)
    if is_async(checker):
        raise _refused("checker", checker, "a plain function: an `async def` is not awaited")
    if isinstance(topics, str) or not all(isinstance(topic, str) for topic in topics):
        raise _refused("topics", topics, "a list of names")


def configured(config: BridgeConfig | None, settings: dict[str, Any]) -> BridgeConfig:
    """Return the settings in force: `settings`, then `config` or the environment, then defaults.

    Raises:
        ConfigError: a setting is wrong or missing; the user corrects it.
        TypeError: there is no such setting.
    """
    if config is None:
        return BridgeConfig.from_environ(os.environ, **settings)
    refuse_unknown(settings)
    return replace(config, **settings)


def _refused(field: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(field=field, value=repr(value), origin="argument", allowed=allowed)
