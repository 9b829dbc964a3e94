"""Who is not a superuser installs where a superuser has prepared the way, and is told the way."""

from __future__ import annotations

import psycopg
import pytest
from catalog import contents, differences

from hydrator import migrations
from hydrator.errors import HydratorError, InstallationError


def test_owner_installs_beside_the_extension(admin: psycopg.Connection, owner) -> None:
    admin.execute("create extension vector")
    before = contents(admin)
    migrations.upgrade(owner.url, dimensions=4)
    first = contents(admin)
    with psycopg.connect(owner.url) as connection:
        connection.execute("select hydrator.remember('agent', 'a memory', p_embedding => '[1,0,0,0]')")
        found = connection.execute(
            "select heading from hydrator.search_memories('[1,0,0,0]', array['agent'])"
        )
        assert found.fetchall() == [("a memory",)]

    migrations.downgrade(owner.url, "base")
    assert differences(before, contents(admin)) == {}
    migrations.upgrade(owner.url, dimensions=4)
    assert differences(first, contents(admin)) == {}


@pytest.mark.parametrize("schema", ["public", "extensions"])
def test_owner_is_told_what_a_superuser_must_run(admin: psycopg.Connection, owner, schema: str) -> None:
    if schema != "public":
        admin.execute(f"create schema {schema}")
    statement = f"create extension vector with schema {schema};"
    before = contents(admin)
    with pytest.raises(InstallationError) as caught:
        migrations.upgrade(owner.url, extension_schema=schema)
    assert caught.value.sqlstate == "MH011"
    assert statement in str(caught.value)
    assert admin.info.dbname in str(caught.value)
    assert owner.name in str(caught.value)
    assert differences(before, contents(admin)) == {}

    # And that is all that was missing.
    admin.execute(statement)
    admin.execute(f"grant usage on schema {schema} to {owner.name}")
    migrations.upgrade(owner.url)
    assert admin.execute("select extension_schema from hydrator.installation()").fetchall() == [(schema,)]


def test_role_installs_into_a_schema_made_for_it(admin: psycopg.Connection, role) -> None:
    admin.execute("create extension vector")
    admin.execute(f"create schema hydrator authorization {role.name}")
    before = contents(admin)
    migrations.upgrade(role.url)
    assert admin.execute("select hydrator.schema_version()").fetchone() == ("0001",)
    migrations.downgrade(role.url, "base")
    assert differences(before, contents(admin)) == {}
    migrations.upgrade(role.url)


def test_role_that_may_create_nothing(admin: psycopg.Connection, role) -> None:
    admin.execute("create extension vector")
    before = contents(admin)
    with pytest.raises(HydratorError, match=f"permission denied for database {admin.info.dbname}"):
        migrations.upgrade(role.url)
    assert differences(before, contents(admin)) == {}
