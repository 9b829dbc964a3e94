"""What a database holds, as a mapping from each object to its definition, to be compared."""

from __future__ import annotations

import psycopg

# The first oid of what did not come with the server.
_FIRST = 16_384

# Every catalog of this database whose rows have an oid, and so a description.
_CATALOGS = """
select c.relname
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attname = 'oid'
where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind = 'r' and not c.relisshared
order by c.relname
"""

_DEFINITIONS = """
with ours as (select n.oid from pg_namespace n where n.nspname = 'hydrator')
select 'definition of ' || p.oid::regprocedure,
  jsonb_build_array(pg_get_functiondef(p.oid), p.proacl::text, p.proowner::regrole)
from pg_proc p where p.pronamespace in (select oid from ours)

union all
select 'definition of ' || c.oid::regclass,
  jsonb_build_array(c.relkind, c.relpersistence, c.reloptions, c.relacl::text, c.relowner::regrole,
    c.relrowsecurity, c.relforcerowsecurity, c.relreplident,
    case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) end,
    case when c.relkind = 'i' then pg_get_indexdef(c.oid) end)
from pg_class c where c.relnamespace in (select oid from ours)

union all
select 'definition of ' || c.oid::regclass || '.' || a.attname,
  jsonb_build_array(a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated,
    a.attidentity, a.attstorage, a.attcompression, a.attoptions, a.attacl::text, a.attcollation::regcollation,
    pg_get_expr(d.adbin, d.adrelid))
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where c.relnamespace in (select oid from ours)

union all
select 'definition of ' || c.conname || ' on ' || c.conrelid::regclass,
  jsonb_build_array(pg_get_constraintdef(c.oid), c.convalidated, c.condeferrable)
from pg_constraint c where c.connamespace in (select oid from ours)

union all
select 'definition of ' || t.tgname || ' on ' || t.tgrelid::regclass,
  jsonb_build_array(pg_get_triggerdef(t.oid), t.tgenabled)
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
where c.relnamespace in (select oid from ours) and not t.tgisinternal

union all
select 'grants on type ' || t.oid::regtype, to_jsonb(t.typacl::text)
from pg_type t where t.typnamespace in (select oid from ours)

union all
select 'grants on schema ' || n.nspname, jsonb_build_array(n.nspacl::text, n.nspowner::regrole)
from pg_namespace n where n.nspname !~ '^pg_(toast_)?temp_'

union all
select 'default grants on ' || d.defaclobjtype::text || ' in ' || d.defaclnamespace::regnamespace,
  to_jsonb(d.defaclacl::text)
from pg_default_acl d

union all
select 'comment on ' || pg_describe_object(d.classoid, d.objoid, d.objsubid), to_jsonb(d.description)
from pg_description d where d.objoid >= %(first)s
"""


def contents(connection: psycopg.Connection) -> dict[str, object]:
    """List every object that is not the server's own, and the definitions of those of ours.

    Names made from an oid are written without it, so that two databases can be compared.
    """
    with connection.transaction():
        connection.execute("set local search_path = ''")
        inventory = " union all ".join(
            f"select pg_describe_object('{name}'::regclass, oid, 0) as what from {name} where oid >= {_FIRST}"
            for (name,) in connection.execute(_CATALOGS).fetchall()
        )
        names = (
            rf"select regexp_replace(i.what, '\d{{5,}}', '…', 'g'), count(*) from ({inventory}) i group by 1"
        )
        found = dict(connection.execute(names).fetchall())
        found.update(connection.execute(_DEFINITIONS, {"first": _FIRST}).fetchall())
        if "table hydrator.installed" in found:
            found["settings"] = connection.execute("select * from hydrator.installed").fetchall()
    return found


def differences(one: dict[str, object], other: dict[str, object]) -> dict[str, tuple[object, object]]:
    """Give what is not the same in both, with what each of them has."""
    return {
        key: (one.get(key), other.get(key))
        for key in sorted(one.keys() | other.keys())
        if one.get(key) != other.get(key)
    }
