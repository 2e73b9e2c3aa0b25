"""The app for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class HalfbridgeConfig(AppConfig):
    """The app `halfbridge`: the tables of fence and inbox."""

    name = "halfbridge.django"
    label = "halfbridge"
    verbose_name = "halfbridge"
    default_auto_field = "django.db.models.BigAutoField"
