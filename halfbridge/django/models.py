"""The rows of fence and inbox, to be read, and the entry of the admin's page.

Only halfbridge writes the rows. The models are not managed: halfbridge.sql defines the tables, with
types that differ by database, and `flush`, which tests call, would delete the fence table's own
rows.
"""

from __future__ import annotations

from django.db import models


class FenceRow(models.Model):
    """How a local transaction ended; see halfbridge.sql.tables. The table has two own rows."""

    pk = models.CompositePrimaryKey("producer_group", "transaction_id")
    producer_group = models.CharField(max_length=249)
    transaction_id = models.CharField(max_length=32)
    outcome = models.CharField(max_length=11)
    message_count = models.IntegerField()
    created_at_ms = models.BigIntegerField()
    table_id = models.CharField(max_length=32, null=True)  # noqa: DJ001  (only own rows have it)
    purged_before_ms = models.BigIntegerField(null=True)

    class Meta:
        """Defined by halfbridge.sql."""

        managed = False
        db_table = "halfbridge_fence"

    def __str__(self) -> str:
        return f"{self.producer_group} {self.transaction_id}: {self.outcome}"


class InboxMark(models.Model):
    """A message that a consumer group has taken; on MariaDB the two names are bytes."""

    pk = models.CompositePrimaryKey("group_id", "transaction_id", "message_index")
    group_id = models.CharField(max_length=255)
    transaction_id = models.CharField(max_length=255)
    message_index = models.IntegerField()
    created_at_ms = models.BigIntegerField()

    class Meta:
        """Defined by halfbridge.sql."""

        managed = False
        db_table = "halfbridge_inbox"

    def __str__(self) -> str:
        return f"{self.group_id} {self.transaction_id}[{self.message_index}]"


class _NoRows(models.Manager["MessageTransaction"]):
    """Returns no rows without a query: `dumpdata` reads each model, and this one has no table."""

    def get_queryset(self) -> models.QuerySet[MessageTransaction]:
        return super().get_queryset().none()


class MessageTransaction(models.Model):
    """What the admin's page and the permission to view it are named after; it has no table."""

    objects = _NoRows()

    class Meta:
        """Not in the database: transactions are in Kafka."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return "message transaction"
