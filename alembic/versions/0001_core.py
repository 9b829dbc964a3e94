"""The core: memories, liveness, ranking and budget.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from hydrator.migrations import run_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sql("0001/upgrade.sql")


def downgrade() -> None:
    run_sql("0001/downgrade.sql")
