"""The app of orders."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The app of orders."""

    name = "tests.sql.django_shop"
    label = "shop"
