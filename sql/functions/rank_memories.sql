-- The ranking, in its one place: the live memories nearest to the query, nearest first,
-- ties by memory_id; min(p_top_k, rankable live rows) of them. Behind fetch_top_k_relevant(),
-- search_memories() and hydrate_session(), which passes p_skip_pinned, since pinned memories
-- take no place in its top-k. Raises MH001, MH002, MH003, MH005, MH009. Reads the vectors of
-- the namespaces' live rows.
create function hydrator.rank_memories(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_top_k integer,
  p_memory_types text[],
  p_min_similarity double precision,
  p_metadata jsonb,
  p_embedding_model text,
  p_skip_pinned boolean
)
returns table (
  namespace text,
  memory_id uuid,
  distance double precision
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_query constant @extension_schema@.@vector_type@ := p_query_embedding::@extension_schema@.@vector_type@;
begin
  perform hydrator.check_namespaces(p_namespaces);
  perform hydrator.check_embedding('query_embedding', p_query_embedding);
  perform hydrator.check_count('top_k', p_top_k);
  if p_min_similarity = 'NaN' then
    raise exception 'min_similarity is NaN'
      using errcode = 'MH003', hint = 'Leave it null to take every similarity.';
  end if;
  perform hydrator.check_embedding_model(p_embedding_model, p_namespaces);

  return query
  with ranked as (
    -- The + 0 keeps an approximate index from answering for an exact scan.
    select
      m.namespace, m.memory_id,
      (m.embedding operator(@extension_schema@.@distance_operator@) v_query) + 0 as distance
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C")
      and m.embedding is not null
      and (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
      and (p_metadata is null or m.metadata @> p_metadata)
      and not (p_skip_pinned and m.pinned)
    order by 3, m.memory_id, m.namespace
    limit p_top_k
  )
  -- After the limit, since similarity falls as distance grows; both as real, so that a
  -- similarity equal to the floor passes.
  select r.namespace, r.memory_id, r.distance
  from ranked r
  where p_min_similarity is null or hydrator.similarity(r.distance)::real >= p_min_similarity::real
  order by r.distance, r.memory_id, r.namespace;
end
$function$;

comment on function hydrator.rank_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, boolean
) is 'The live memories nearest to a query, nearest first: ids and distances.';
revoke execute on function hydrator.rank_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, boolean
) from public;
