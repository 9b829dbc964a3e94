-- What was settled at install: how long the embeddings are, how they are stored and
-- compared, where pgvector lives, and how texts are read. For whoever is about to embed. Reads one row.
create function hydrator.installation()
returns table (
  dimensions integer,
  vector_type text,
  distance text,
  extension_schema text,
  text_search_config text
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return query
  select i.dimensions, i.vector_type, i.distance, i.extension_schema, i.text_search_config
  from hydrator.installed i;
end
$function$;

comment on function hydrator.installation() is
  'The settings of this installation: dimensions, vector type, distance, schema of the extension, text search configuration.';
revoke execute on function hydrator.installation() from public;
