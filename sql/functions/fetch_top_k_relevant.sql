-- Tier 2 alone: the p_top_k live memories nearest to the query, in full, nearest first,
-- ties by memory_id. The filters narrow what is ranked; p_embedding_model names the query's
-- model and is held against the stored ones. Raises what rank_memories() raises. Reads the
-- vectors of the namespaces' live rows and p_top_k contents.
create function hydrator.fetch_top_k_relevant(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_top_k integer default 5,
  p_memory_types text[] default null,
  p_min_similarity double precision default null,
  p_metadata jsonb default null,
  p_embedding_model text default null
)
returns table (
  memory_id uuid,
  namespace text,
  memory_type text,
  heading text,
  content text,
  confidence real,
  source_type text,
  supersedes uuid,
  expires_at timestamptz,
  deleted_at timestamptz,
  distance double precision,
  tokens integer
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
begin
  return query
  select
    m.memory_id, m.namespace, m.memory_type, m.heading, m.content, m.confidence, m.source_type,
    m.supersedes, m.expires_at, m.deleted_at, r.distance, m.content_tokens
  from hydrator.rank_memories(
    p_query_embedding, p_namespaces, p_top_k,
    p_memory_types, p_min_similarity, p_metadata, p_embedding_model, false, null
  ) k
  cross join unnest(k.namespaces, k.memory_ids, k.distances)
    with ordinality r (namespace, memory_id, distance, rank)
  join hydrator.memories m on m.namespace = r.namespace and m.memory_id = r.memory_id
  order by r.rank;
end
$function$;

comment on function hydrator.fetch_top_k_relevant(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text
) is 'Tier 2: the live memories nearest to the query, in full, nearest first.';
revoke execute on function hydrator.fetch_top_k_relevant(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text
) from public;
