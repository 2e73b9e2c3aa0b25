"""The old place of AdminClient."""

from halfbridge.bridge.kafka.admin import AdminClient

__all__ = ["AdminClient"]
