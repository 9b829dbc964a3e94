-- Progressive disclosure, first step: what fetch_top_k_relevant() gives, as summaries of one line.
-- The snippet is the content's start, white space folded, at most 120 characters with the ellipsis.
-- Raises and reads what that does.
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
begin
  perform hydrator.check_count('limit', p_limit);

  return query
  select
    r.memory_id, r.heading, r.memory_type, r.confidence,
    case
      when char_length(f.folded) <= 120 then f.folded
      else rtrim(left(f.folded, 119)) || '…'
    end,
    r.score, r.distance, r.vector_rank, r.text_rank, r.tokens
  from hydrator.fetch_top_k_relevant(
    p_query_embedding, p_namespaces, p_limit,
    p_memory_types, p_min_similarity, p_metadata, p_embedding_model, p_query_text,
    p_min_confidence, p_source_types,
    p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance
  ) with ordinality r
  cross join lateral (
    select btrim(regexp_replace(r.content, '[@white_space@]+', ' ', 'g')) as folded
  ) f
  order by r.ordinality;
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
