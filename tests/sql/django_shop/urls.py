"""Views that place an order, as a service does, and in ATOMIC_REQUESTS."""

from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import HttpResponse
from django.urls import path

from halfbridge import Message
from halfbridge.django import message_transaction
from tests.sql.django_shop.models import Order


def place(request: Any, item: str) -> HttpResponse:
    """Insert an order, and send its number, which the database has made."""
    with message_transaction() as tx:
        order = Order.objects.create(item=item)
        tx.send(Message(settings.ORDERS_TOPIC, key=item.encode(), value=b"%d" % order.pk))
    return HttpResponse(str(order.pk))


@transaction.non_atomic_requests
def place_alone(request: Any, item: str) -> HttpResponse:
    """Place an order outside of ATOMIC_REQUESTS."""
    return place(request, item)


urlpatterns = [path("place/<str:item>", place), path("alone/<str:item>", place_alone)]
