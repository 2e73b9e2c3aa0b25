"""The project set up in this process, for tests; its models, and those of halfbridge.django."""

import django
from django.apps import apps
from django.conf import settings
from django.db import connections

from tests.sql.django_shop import settings as own

if not settings.configured:
    settings.configure(**{name: value for name, value in vars(own).items() if name.isupper()})
    django.setup()


def use_database(url: str) -> None:
    """Connect this thread, and later connections, to this database."""
    databases = {"default": own.database_settings(url)}
    connections.settings = connections.configure_settings(databases)
    connections["default"] = connections.create_connection("default")


Order, Line = apps.get_model("shop", "Order"), apps.get_model("shop", "Line")
FenceRow = apps.get_model("halfbridge", "FenceRow")
InboxMark = apps.get_model("halfbridge", "InboxMark")
