"""What is settled at install: recorded, built into the schema, and the same ever after."""

from __future__ import annotations

import re

import psycopg
import pytest
from catalog import contents, differences
from psycopg import sql

from hydrator import migrations
from hydrator.errors import InstallationError

QUERY = "select * from hydrator.installation()"


def test_defaults(admin: psycopg.Connection, empty_url: str) -> None:
    migrations.upgrade(empty_url)
    assert admin.execute(QUERY).fetchall() == [(256, "vector", "cosine", "public", "english")]


@pytest.mark.parametrize(
    ("dimensions", "vector_type", "distance", "operator"),
    [
        (1, "vector", "cosine", "<=>"),
        (1536, "halfvec", "inner_product", "<#>"),
        (16_000, "vector", "l2", "<->"),
        (16_000, "halfvec", "cosine", "<=>"),
    ],
)
def test_settings(
    admin: psycopg.Connection, empty_url: str, dimensions: int, vector_type: str, distance: str, operator: str
) -> None:
    admin.execute("create schema extensions")
    settings = {
        "dimensions": dimensions,
        "vector_type": vector_type,
        "distance": distance,
        "extension_schema": "extensions",
    }
    migrations.upgrade(empty_url, **settings)
    migrations.upgrade(empty_url, **settings)
    migrations.upgrade(empty_url)
    assert admin.execute(QUERY).fetchall() == [(dimensions, vector_type, distance, "extensions", "english")]

    column = admin.execute(
        "select format_type(a.atttypid, a.atttypmod) from pg_attribute a"
        " where a.attrelid = 'hydrator.memories'::regclass and a.attname = 'embedding'"
    ).fetchone()[0]
    assert column == f"extensions.{vector_type}({dimensions})"

    for function in ("rank_memories", "hydrate_session"):
        body = admin.execute("select prosrc from pg_proc where proname = %s", [function]).fetchone()[0]
        assert set(re.findall(r"operator\((.*?)\)", body.replace('"', ""))) - {"extensions.<~>"} == {
            f"extensions.{operator}"
        }


@pytest.mark.parametrize(
    ("setting", "other"),
    [
        ("dimensions", 9),
        ("vector_type", "halfvec"),
        ("distance", "l2"),
        ("extension_schema", "elsewhere"),
        ("text_search_config", "simple"),
    ],
)
def test_settings_never_change(
    admin: psycopg.Connection, empty_url: str, setting: str, other: object
) -> None:
    migrations.upgrade(empty_url, dimensions=8)
    before = contents(admin)
    settled = {
        "dimensions": 8,
        "vector_type": "vector",
        "distance": "cosine",
        "extension_schema": "public",
    } | {"text_search_config": "english"}
    with pytest.raises(
        InstallationError, match=f"^{setting} is {settled[setting]} in this database, not {other}"
    ):
        migrations.upgrade(empty_url, **{setting: other})
    assert differences(before, contents(admin)) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vector_type": "bit"}, "vector type is 'bit'"),
        ({"distance": "l1"}, "distance is 'l1'"),
        ({"dimensions": 0}, "dimensions is 0"),
        ({"dimensions": 16_001}, "dimensions is 16001"),
    ],
)
def test_impossible_settings(admin: psycopg.Connection, empty_url: str, settings: dict, message: str) -> None:
    before = contents(admin)
    with pytest.raises(InstallationError, match=message):
        migrations.upgrade(empty_url, **settings)
    assert differences(before, contents(admin)) == {}


def test_unknown_setting(empty_url: str) -> None:
    with pytest.raises(TypeError, match=r"^unknown settings: dimension$"):
        migrations.upgrade(empty_url, dimension=8)


def call_everything(connection: psycopg.Connection) -> None:
    """One call of each function that an application calls, with what it should find."""

    def call(query: str, *parameters: object) -> list[tuple]:
        return connection.execute(f"select * from hydrator.{query}", parameters).fetchall()

    ((memory,),) = call("remember('agent', 'a heading', 'a content', '[1,0,0,0]')")
    ((newer,),) = call("remember('agent', 'newer', p_embedding => '[0,1,0,0]', p_supersedes => %s)", memory)
    assert call("compact_index(array['agent'])") == [(newer, "newer", "semantic", 1.0)]
    assert [row[0] for row in call("fetch_top_k_relevant('[0,1,0,0]', array['agent'])")] == [newer]
    assert [row[0] for row in call("search_memories('[0,1,0,0]', array['agent'])")] == [newer]
    assert [row[0] for row in call("fetch_memories(array['agent'], array[%s, %s])", memory, newer)] == [newer]
    ((index, relevant, *_),) = call("hydrate_session('[0,1,0,0]', array['agent'])")
    assert (
        [entry["memory_id"] for entry in index] == [entry["memory_id"] for entry in relevant] == [str(newer)]
    )
    assert call("forget('agent', %s)", newer) == [(True,)]
    assert call("purge('1 day')") == [(0,)]
    assert call("estimate_tokens('12345')") == [(2,)]
    assert call("schema_version()") == [("0001",)]


# Words of each kind that SQL keeps for itself, and others that only quoting makes a name.
@pytest.mark.parametrize("name", ["extensions", "Odd Schema", "user", "left", "time", "o'quote\"d", "100%"])
def test_extension_in_another_schema(admin: psycopg.Connection, empty_url: str, name: str) -> None:
    schema = sql.Identifier(name)
    admin.execute(sql.SQL("create schema {}").format(schema))
    admin.execute(sql.SQL("create extension vector with schema {}").format(schema))
    admin.execute(sql.SQL("alter database {} set search_path = ''").format(sql.Identifier(admin.info.dbname)))
    migrations.upgrade(empty_url, dimensions=4)
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("show search_path").fetchone() == ('""',)
        assert connection.execute(QUERY).fetchall() == [(4, "vector", "cosine", name, "english")]
        call_everything(connection)
    migrations.downgrade(empty_url, "base")


def test_extension_asked_for_where_it_is_not(admin: psycopg.Connection, empty_url: str) -> None:
    admin.execute("create schema extensions; create extension vector with schema extensions")
    before = contents(admin)
    with pytest.raises(InstallationError, match="extensions in this database, not public"):
        migrations.upgrade(empty_url, extension_schema="public")
    assert differences(before, contents(admin)) == {}


def test_extension_schema_that_is_not_there(admin: psycopg.Connection, empty_url: str) -> None:
    before = contents(admin)
    with pytest.raises(InstallationError, match='schema "nowhere"') as caught:
        migrations.upgrade(empty_url, extension_schema="nowhere")
    # That is what was run; the way out is another statement.
    assert "db upgrade" not in str(caught.value)
    assert differences(before, contents(admin)) == {}
