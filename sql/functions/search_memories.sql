-- Progressive disclosure, first step: the live memories most relevant to the query as summaries
-- of one line, best first, ties by memory_id: by the query's vector, its text or both, see
-- rank_hybrid(); where one of the last four parameters is given, see rerank_memories(). The
-- snippet is the content's start, white space folded, at most 120 characters with the ellipsis.
-- Raises what these raise. Reads the vectors of the namespaces' live rows and p_limit contents.
create function hydrator.search_memories(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_limit integer default 20,
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
  heading text,
  memory_type text,
  confidence real,
  snippet text,
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
  v_ranked record;
begin
  perform hydrator.check_count('limit', p_limit);

  if num_nonnulls(p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance) > 0 then
    v_ranked := hydrator.rerank_memories(
      p_query_embedding, p_query_text, p_namespaces, p_limit,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false, null,
      p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance, false
    );
  elsif p_query_text is null then
    v_ranked := hydrator.rank_memories(
      p_query_embedding, p_namespaces, p_limit,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false, null
    );
  else
    v_ranked := hydrator.rank_hybrid(
      p_query_embedding, p_query_text, p_namespaces, p_limit,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false, null
    );
  end if;

  return query
  select
    m.memory_id, m.heading, m.memory_type, m.confidence,
    case
      when char_length(f.folded) <= 120 then f.folded
      else rtrim(left(f.folded, 119)) || '…'
    end,
    r.score, r.distance, r.vector_rank, r.text_rank, m.content_tokens
  from unnest(
    v_ranked.namespaces, v_ranked.memory_ids, v_ranked.scores, v_ranked.distances, v_ranked.vector_ranks,
    v_ranked.text_ranks
  ) with ordinality r (namespace, memory_id, score, distance, vector_rank, text_rank, rank)
  join hydrator.memories m on m.namespace = r.namespace and m.memory_id = r.memory_id
  cross join lateral (
    select btrim(regexp_replace(m.content, '[@white_space@]+', ' ', 'g')) as folded
  ) f
  order by r.rank;
end
$function$;

comment on function hydrator.search_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) is 'The live memories most relevant to the query as one-line summaries; fetch_memories() gives them in full.';
revoke execute on function hydrator.search_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) from public;
