-- What was settled at install: how long the embeddings are, how they are stored and
-- compared, and where pgvector lives. For whoever is about to embed. Reads one row.
create function hydrator.installation()
returns table (
  dimensions integer,
  vector_type text,
  distance text,
  extension_schema text
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return query
  select i.dimensions, i.vector_type, i.distance, i.extension_schema
  from hydrator.installed i;
end
$function$;

comment on function hydrator.installation() is
  'The settings of this installation: dimensions, vector type, distance, schema of the extension.';
revoke execute on function hydrator.installation() from public;
