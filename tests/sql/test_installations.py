"""Other vector types, distances and schemas of the extension than the template's."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from hydrator import migrations


def install(url: str, extension_schema: str, vector_type: str, distance: str) -> psycopg.Connection:
    """Install with four dimensions where pgvector lives in a schema of its own, outside the search path."""
    connection = psycopg.connect(url, autocommit=True)
    schema = sql.Identifier(extension_schema)
    connection.execute(sql.SQL("create schema {}").format(schema))
    connection.execute(sql.SQL("create extension vector with schema {}").format(schema))
    migrations.upgrade(
        url,
        dimensions=4,
        vector_type=vector_type,
        distance=distance,
        extension_schema=extension_schema,
    )
    return connection


def headings(db: psycopg.Connection, arguments: str) -> list[str]:
    rows = db.execute(f"select heading from hydrator.search_memories('[1,0,0,0]', '{{a}}', {arguments})")
    return [row[0] for row in rows]


# The memories [3,4,0,0], [1,0,0,0], [0,-2,0,0] and [-1,0,0,0] from the query [1,0,0,0], nearest first:
# distance, and a similarity that a real holds in full or that its text reads back to.
EXPECTED = {
    "cosine": [("same", 0, "1"), ("long", 0.4, "0.6"), ("across", 1, "0"), ("opposite", 2, "-1")],
    "inner_product": [("long", -3, "3"), ("same", -1, "1"), ("across", 0, "0"), ("opposite", 1, "-1")],
    "l2": [
        ("same", 0, "1"),
        ("opposite", 2, "0.33333334"),
        ("across", 5**0.5, "0.309017"),
        ("long", 20**0.5, "0.18274400"),
    ],
}

OPERATORS = {"cosine": "<=>", "inner_product": "<#>", "l2": "<->"}


@pytest.mark.parametrize(
    ("extension_schema", "vector_type", "distance"),
    [
        ("extensions", "vector", "inner_product"),
        ("Odd Schema", "vector", "l2"),
        ('it\'s "odd" 100%', "halfvec", "cosine"),
        ("extensions", "halfvec", "inner_product"),
    ],
)
def test_an_installation(empty_url: str, extension_schema: str, vector_type: str, distance: str) -> None:
    with install(empty_url, extension_schema, vector_type, distance) as db:
        assert db.execute("select * from hydrator.installation()").fetchone() == (
            4,
            vector_type,
            distance,
            extension_schema,
            "english",
        )
        for heading, embedding in {
            "long": "[3,4,0,0]",
            "same": "[1,0,0,0]",
            "across": "[0,-2,0,0]",
            "opposite": "[-1,0,0,0]",
        }.items():
            db.execute("select hydrator.remember('a', %s, p_embedding => %s)", (heading, embedding))

        # The distances are the operator's own.
        vector = sql.SQL("{}.{}").format(sql.Identifier(extension_schema), sql.Identifier(vector_type))
        operator = sql.SQL("operator({}.{})").format(
            sql.Identifier(extension_schema), sql.SQL(OPERATORS[distance])
        )
        by_operator = db.execute(
            sql.SQL(
                "select heading, embedding {} '[1,0,0,0]'::{} from hydrator.memories order by 2, memory_id"
            ).format(operator, vector)
        ).fetchall()
        for call in ("fetch_top_k_relevant", "search_memories"):
            ranked = db.execute(
                f"select heading, distance from hydrator.{call}('[1,0,0,0]', '{{a}}')"
            ).fetchall()
            assert ranked == by_operator
        assert ranked == [(heading, pytest.approx(d)) for heading, d, _ in EXPECTED[distance]]
        (relevant,) = db.execute(
            "select relevant from hydrator.hydrate_session('[1,0,0,0]', '{a}')"
        ).fetchone()
        assert [(memory["heading"], memory["distance"]) for memory in relevant] == ranked

        # A similarity equal to the floor passes, and the next real above it does not.
        for place, (heading, _, similarity) in enumerate(EXPECTED[distance]):
            assert headings(db, f"20, p_min_similarity => {similarity}")[-1] == heading
            above = float(similarity) + 1e-6
            assert len(headings(db, f"20, p_min_similarity => {above:.8f}")) == place

        # The lifecycle, once: what the bodies of the other functions name has to be found too.
        (old,) = db.execute("select memory_id from hydrator.memories where heading = 'same'").fetchone()
        (new,) = db.execute("select hydrator.remember('a', 'new', p_supersedes => %s)", (old,)).fetchone()
        assert db.execute(
            "select heading from hydrator.fetch_memories('{a}', %s)", ([old, new],)
        ).fetchall() == [("new",)]
        assert db.execute("select hydrator.forget('a', %s)", (new,)).fetchone() == (True,)
        assert db.execute("select hydrator.purge('0')").fetchone() == (2,)
        assert db.execute("select count(*) from hydrator.compact_index('{a}')").fetchone() == (3,)


def test_a_halfvec_that_overflows_or_vanishes_is_refused(empty_url: str) -> None:
    """Half precision ends at 65504 and, below, at about 6e-8; a vector is judged as it would be stored."""
    with install(empty_url, "extensions", "halfvec", "cosine") as db:
        for embedding, sqlstate in {
            "[1e6,0,0,0]": "22003",
            "[1e-9,1e-9,0,0]": "MH002",
            "[0,0,0,0]": "MH002",
            "[1,2,3]": "MH001",
        }.items():
            for call in (
                "select hydrator.remember('a', 'x', p_embedding => %s)",
                "select hydrator.search_memories(%s, '{a}')",
                "select hydrator.fetch_top_k_relevant(%s, '{a}')",
                "select hydrator.hydrate_session(%s, '{a}')",
            ):
                with pytest.raises(psycopg.Error) as refused:
                    db.execute(call, (embedding,))
                assert refused.value.sqlstate == sqlstate, (call, embedding)
        assert db.execute("select count(*) from hydrator.memories").fetchone() == (0,)

        for embedding in ("[65504,65504,65504,65504]", "[1e-7,0,0,0]"):
            db.execute("select hydrator.remember('a', %s, p_embedding => %s)", (embedding, embedding))
        rows = db.execute("select distance from hydrator.search_memories('[1e-7,0,0,0]', '{a}')").fetchall()
        assert rows == [(0,), (pytest.approx(0.5),)]


@pytest.mark.parametrize(
    ("dimensions", "vector_type", "rows"), [(1024, "halfvec", 3), (1536, "halfvec", 2), (1536, "vector", 1)]
)
def test_short_contents_stay_beside_the_embedding(
    empty_url: str, dimensions: int, vector_type: str, rows: int
) -> None:
    """And long ones move out, so that a page holds as many rows of either."""
    migrations.upgrade(empty_url, dimensions=dimensions, vector_type=vector_type)
    with psycopg.connect(empty_url, autocommit=True) as db:

        def remember(namespace: str, hashes: int) -> tuple[int, bool]:
            """Remember twelve of so many hashes, which do not compress; give their pages and whether any moved out."""
            db.execute("truncate hydrator.memories")
            db.execute(
                "select hydrator.remember(%s, 'memory ' || n, (select string_agg(md5(n || 'x' || h), '')"
                " from generate_series(1, %s) h), (select array_agg(random() + h * 0)"
                " from generate_series(1, %s) h)::vector) from generate_series(1, 12) n",
                [namespace, hashes, dimensions],
            )
            return db.execute(
                "select count(distinct (m.ctid::text::point)[0]), pg_relation_size(c.reltoastrelid) > 0"
                " from hydrator.memories m join pg_class c on c.oid = m.tableoid group by c.reltoastrelid"
            ).fetchone()

        assert remember("short", 2) == (12 / rows, False)
        assert remember("long", 100) == (12 / rows, True)
