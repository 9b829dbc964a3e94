from __future__ import annotations

import psycopg


def test_seed_arithmetic(db: psycopg.Connection) -> None:
    db.execute(
        """
        insert into hydrator.memories (namespace, heading, content, embedding)
        select 'agent', rpad('memory ' || i, 60, '.'), repeat('x', 939), array[1, i, 0, 0]::vector
        from generate_series(1, 200) i
        """
    )
    row = db.execute("select * from hydrator.hydrate_session('[1,0,0,0]', array['agent'])").fetchone()
    assert row[3:6] == (3000, 1250, 4250)
