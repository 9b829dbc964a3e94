-- The revision of the schema, as its migrations count it. Reads one row.
create function hydrator.schema_version()
returns text
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (select v.version_num from hydrator.alembic_version v);
end
$function$;

comment on function hydrator.schema_version() is
  'The revision of the hydrator schema that is installed.';
revoke execute on function hydrator.schema_version() from public;
