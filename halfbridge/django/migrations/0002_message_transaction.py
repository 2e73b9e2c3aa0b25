"""The entry of the admin's page, which has a permission and no table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """No SQL."""

    dependencies: ClassVar[list[Any]] = [("halfbridge", "0001_initial")]
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="MessageTransaction",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "base_manager_name": "objects",
                "managed": False,
            },
        ),
    ]
