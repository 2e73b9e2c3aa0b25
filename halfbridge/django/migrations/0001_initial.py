"""Create the tables of fence and inbox."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models

from halfbridge.django.process import create_tables


def _create(_apps: Any, schema_editor: Any) -> None:
    create_tables(schema_editor.connection.alias)


class Migration(migrations.Migration):
    """Tables as halfbridge.sql defines them; may be repeated.

    The reverse keeps them: a fence table must not be dropped while transactions are undecided.
    """

    # The tables are made on a connection of their own, for which SQLite's file must not be locked.
    atomic = False
    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="FenceRow",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "producer_group",
                        "transaction_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("producer_group", models.CharField(max_length=249)),
                ("transaction_id", models.CharField(max_length=32)),
                ("outcome", models.CharField(max_length=11)),
                ("message_count", models.IntegerField()),
                ("created_at_ms", models.BigIntegerField()),
                ("table_id", models.CharField(max_length=32, null=True)),
                ("purged_before_ms", models.BigIntegerField(null=True)),
            ],
            options={"db_table": "halfbridge_fence", "managed": False},
        ),
        migrations.CreateModel(
            name="InboxMark",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "group_id",
                        "transaction_id",
                        "message_index",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("group_id", models.CharField(max_length=255)),
                ("transaction_id", models.CharField(max_length=255)),
                ("message_index", models.IntegerField()),
                ("created_at_ms", models.BigIntegerField()),
            ],
            options={"db_table": "halfbridge_inbox", "managed": False},
        ),
        migrations.RunPython(_create, migrations.RunPython.noop),
    ]
