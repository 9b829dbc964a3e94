-- Tier 2 alone: the p_top_k live memories most relevant to the query, in full, best first, ties
-- by memory_id: by the query's vector, its text or both, see rank_hybrid(); where one of the last
-- four parameters is given, see rerank_memories(). The filters narrow what is ranked;
-- p_embedding_model names the query's model and is held against the stored ones. Raises what these
-- raise. Reads the vectors of the namespaces' live rows and p_top_k contents.
create function hydrator.fetch_top_k_relevant(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_top_k integer default 5,
  p_memory_types text[] default null,
  p_min_similarity double precision default null,
  p_metadata jsonb default null,
  p_embedding_model text default null,
  p_query_text text default null,
  p_min_confidence double precision default null,
  p_source_types text[] default null,
  p_neighbours integer default null,
  p_recency_half_life interval default null,
  p_confidence_weight double precision default null,
  p_duplicate_distance double precision default null
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
  score double precision,
  distance double precision,
  vector_rank integer,
  text_rank integer,
  tokens integer
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
declare
  v_reranked constant boolean :=
    num_nonnulls(p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance) > 0;
  v_by_vector_alone constant boolean := p_query_text is null and not v_reranked;
  v_ranked record;
  -- Null where the vector alone ranks: then they follow from the distances.
  v_scores double precision[];
  v_vector_ranks integer[];
  v_text_ranks integer[];
begin
  if v_by_vector_alone then
    v_ranked := hydrator.rank_memories(
      p_query_embedding, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false
    );
  elsif v_reranked then
    v_ranked := hydrator.rerank_memories(
      p_query_embedding, p_query_text, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false,
      p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance, false
    );
  else
    v_ranked := hydrator.rank_hybrid(
      p_query_embedding, p_query_text, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false
    );
  end if;
  if not v_by_vector_alone then
    v_scores := v_ranked.scores;
    v_vector_ranks := v_ranked.vector_ranks;
    v_text_ranks := v_ranked.text_ranks;
  end if;

  return query
  select
    m.memory_id, m.namespace, m.memory_type, m.heading, m.content, m.confidence, m.source_type,
    m.supersedes, m.expires_at, m.deleted_at,
    case when v_by_vector_alone then @similarity(r.distance)@ else v_scores[r.rank] end, r.distance,
    case when v_by_vector_alone then r.rank::integer else v_vector_ranks[r.rank] end, v_text_ranks[r.rank],
    m.content_tokens
  from unnest(v_ranked.namespaces, v_ranked.memory_ids, v_ranked.distances)
    with ordinality r (namespace, memory_id, distance, rank)
  join hydrator.memories m on m.namespace = r.namespace and m.memory_id = r.memory_id
  order by r.rank;
end
$function$;

comment on function hydrator.fetch_top_k_relevant(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) is 'Tier 2: the live memories most relevant to the query, by vector, text or both, in full, best first.';
revoke execute on function hydrator.fetch_top_k_relevant(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) from public;
