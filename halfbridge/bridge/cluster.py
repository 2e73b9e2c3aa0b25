"""Checks the installation's topics when a client starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfbridge.bridge.config import admin_properties
from halfbridge.kafka.ports import NewTopic
from halfbridge.kafka.topics import Topics
from halfbridge.serde.topics import CHECK_PARTITIONS, check_topic_settings

if TYPE_CHECKING:
    from halfbridge.bridge.config import BridgeConfig
    from halfbridge.kafka.ports import Ports
    from halfbridge.serde.topics import HalfShape

ADMIN_TIMEOUT_S = 10.0  # start() and send() wait so long at most for one answer


def check_installation(config: BridgeConfig, ports: Ports) -> HalfShape:
    """Check half, op and check topic, and return the half topic's shape.

    Creates the group's check topic if it is missing and the client may create it.

    Raises:
        TopicSetupError: an operator runs the command in its text.
        BridgeError: the brokers do not answer; try again later.
    """
    admin = ports.kafka.admin(admin_properties(config, ports.clock))
    topics = Topics(admin, ports, config.names, remedy=_remedy(config), timeout_s=ADMIN_TIMEOUT_S)
    half = topics.half_shape()
    check = config.names.check(config.producer_group)
    settings = check_topic_settings(half)
    topics.make_missing([NewTopic(check, CHECK_PARTITIONS, half.replicas, settings)])
    return half


def _remedy(config: BridgeConfig) -> str:
    prefix = f" --topic-prefix {config.topic_prefix}" if config.topic_prefix else ""
    return f"run: halfbridge topics create{prefix} --producer-group {config.producer_group}"
