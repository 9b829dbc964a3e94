"""Write ``sql/revisions/0001/upgrade.sql`` anew from the current truth; until 0.1.0 only.

python tests/migrations/freeze.py
"""

from __future__ import annotations

from hydrator.schema import SQL, current_files


def frozen() -> str:
    parts = [f"-- {path.relative_to(SQL)}\n{path.read_text('utf-8')}" for path in current_files()]
    return "-- Made by tests/migrations/freeze.py from sql/tables and sql/functions.\n\n" + "\n".join(parts)


if __name__ == "__main__":
    (SQL / "revisions" / "0001" / "upgrade.sql").write_text(frozen(), "utf-8")
