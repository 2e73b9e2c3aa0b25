"""Orders and their lines, whose foreign key PostgreSQL checks at COMMIT."""

# ruff: noqa: DJ008  (nobody prints them)

from django.db import models


class Order(models.Model):
    """An order; the database makes its number."""

    item = models.CharField(max_length=99, unique=True)


class Line(models.Model):
    """A line of an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
