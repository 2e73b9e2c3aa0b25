"""A Django project in one file that takes orders.

`python examples/django_shop.py` makes the tables; `gunicorn --chdir examples django_shop` serves.
"""

from __future__ import annotations

import os

import django
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.db import IntegrityError, connection, models
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from halfbridge import BridgeError, Message, OutcomeUnknownError
from halfbridge.django import message_transaction, producer

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": "shop.db",
            "OPTIONS": {"timeout": 30},  # seconds for another writer's block
        }
    },
    HALFBRIDGE={
        "default": {
            "bootstrap_servers": os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
            "producer_group": "order-service",
            "topics": ["orders"],
        }
    },
    INSTALLED_APPS=["halfbridge.django"],
    ROOT_URLCONF=__name__,
    SECRET_KEY=os.environ.get("SHOP_SECRET_KEY", "for this machine only"),
)
django.setup()


class Order(models.Model):
    """An order; its table is made below, because a file is no app."""

    item: models.CharField[str, str] = models.CharField(max_length=99, unique=True)

    class Meta:
        """A model outside of INSTALLED_APPS names its app."""

        app_label = "shop"
        db_table = "django_orders"

    def __str__(self) -> str:
        """Return the item."""
        return self.item


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """Place an order: both the row and the message, or neither."""
    try:
        with message_transaction() as tx:
            order = Order.objects.create(item=request.GET["item"])
            tx.send(Message("orders", key=b"%d" % order.pk, value=order.item.encode()))
    except IntegrityError:
        return JsonResponse({"detail": "ordered before"}, status=409)
    except OutcomeUnknownError as error:  # the order may be placed, and a check finds out
        return JsonResponse({"transaction": error.transaction_id}, status=202)
    except BridgeError:  # Kafka takes nothing now; nothing was placed
        return JsonResponse({"detail": "try again"}, status=503)
    return JsonResponse({"order": order.pk, "transaction": tx.id}, status=201)


def health(_request: HttpRequest) -> JsonResponse:
    """Answer 200 if Kafka and the database answer; from then on this worker answers checks."""
    failed = producer().failed_decisions
    connection.ensure_connection()
    return JsonResponse({"failed_decisions": failed})


urlpatterns = [path("orders", place), path("health", health)]
application = get_wsgi_application()

if __name__ == "__main__":
    call_command("migrate")
    if "django_orders" not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Order)
