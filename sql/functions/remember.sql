-- Writes a memory and returns its id; with p_supersedes the old one is retired in the
-- same transaction. Without a content the heading says it all. A null for a parameter
-- with a default means the default. Raises what guard_memory() raises, and MH009 where
-- the namespace holds vectors of another model. Writes one row, or two.
create function hydrator.remember(
  p_namespace text,
  p_heading text,
  p_content text default null,
  p_embedding @extension_schema@.vector default null,
  p_memory_type text default 'semantic',
  p_confidence double precision default 1,
  p_source_type text default 'agent',
  p_supersedes uuid default null,
  p_expires_at timestamptz default null,
  p_pinned boolean default false,
  p_metadata jsonb default '{}',
  p_embedding_model text default null,
  p_token_count integer default null
)
returns uuid
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_memory_id uuid;
begin
  if p_embedding is not null then
    -- Here, before the column's own type can refuse it with a poorer message.
    perform hydrator.check_embedding('embedding', p_embedding);
    if p_embedding_model is not null then
      perform hydrator.check_embedding_model(p_embedding_model, array[p_namespace]);
    end if;
  end if;

  insert into hydrator.memories as m (
    namespace, heading, content, embedding, memory_type, confidence, source_type,
    supersedes, expires_at, pinned, metadata, embedding_model, token_count
  )
  values (
    p_namespace, p_heading, coalesce(p_content, p_heading),
    p_embedding::@extension_schema@.@vector_type@,
    coalesce(p_memory_type, 'semantic'), coalesce(p_confidence, 1), coalesce(p_source_type, 'agent'),
    p_supersedes, p_expires_at, coalesce(p_pinned, false), coalesce(p_metadata, '{}'),
    p_embedding_model, p_token_count
  )
  returning m.memory_id into v_memory_id;
  return v_memory_id;
end
$function$;

comment on function hydrator.remember(
  text, text, text, @extension_schema@.vector, text, double precision, text, uuid, timestamptz, boolean, jsonb, text, integer
) is 'Writes a memory and returns its id; retires the one it supersedes in the same transaction.';
revoke execute on function hydrator.remember(
  text, text, text, @extension_schema@.vector, text, double precision, text, uuid, timestamptz, boolean, jsonb, text, integer
) from public;
