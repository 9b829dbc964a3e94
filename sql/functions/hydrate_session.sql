-- A session's context in one call and one snapshot: the compact index, then the most
-- relevant memories in full, as far as the token budget goes.
--
-- The index always loads: whole, or with p_index_budget the leading run that fits. Pinned
-- memories come next (by confidence, then memory_id; of the filters only p_min_confidence and
-- p_source_types, which say what is trusted, apply to them) and may use at most half of what the
-- index left. Then the top-k in rank order, by the query's vector, its text or both (see
-- rank_hybrid(), and rerank_memories() where one of the last four parameters is given): packing
-- 'stop' ends at the first that would exceed the budget, 'skip' passes over it and goes on. Every
-- candidate that was not accepted is in dropped, with its reason: pinned_share, over_budget,
-- after_cutoff or duplicate_of, and then duplicate_of says of which.
--
-- Raises MH004 for an unknown packing and what index_json(), rank_hybrid() and rerank_memories()
-- raise.
-- Reads the index entries and the vectors of the namespaces' live rows, and the contents of
-- the accepted memories alone. Stable, so that all its queries see the caller's snapshot;
-- time zone and float digits are pinned so that the JSON is the same for every session.
create function hydrator.hydrate_session(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_top_k integer default 5,
  p_token_budget integer default 6000,
  p_index_budget integer default null,
  p_packing text default 'stop',
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
  index json,
  relevant json,
  dropped json,
  index_tokens integer,
  relevant_tokens integer,
  tokens_used integer,
  token_budget integer,
  truncated boolean,
  over_budget boolean,
  index_shown integer,
  index_total integer,
  ranked_by text
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set timezone = 'UTC'
set extra_float_digits = 1
as $function$
declare
  v_checked boolean;
  v_reranked constant boolean :=
    num_nonnulls(p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance) > 0;
  v_by_vector_alone constant boolean := p_query_text is null and not v_reranked;
  v_index record;
  -- Its arrays have an element a candidate: pinned ones first, then rank order.
  v_ranked record;
  v_reasons text[];
  v_pinned integer := 0;
  -- Of the ranked ones alone; null where the vector alone ranks: then they follow from the distances.
  v_scores double precision[];
  v_vector_ranks integer[];
  v_text_ranks integer[];
  -- Null where near-duplicates are not asked for.
  v_duplicates_of uuid[];
  v_dropped json;
  v_relevant_budget bigint;
  v_left bigint;
  v_cut_off boolean;
begin
  if p_packing is null or p_packing not in ('stop', 'skip') then
    raise exception 'packing is %', coalesce(quote_literal(p_packing), 'null')
      using errcode = 'MH004', hint = 'packing is ''stop'' or ''skip''.';
  end if;
  v_checked := hydrator.check_count('token_budget', p_token_budget);

  v_index := hydrator.index_json(p_namespaces, p_index_budget);
  if v_by_vector_alone then
    v_ranked := hydrator.rank_memories(
      p_query_embedding, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, true
    );
  elsif v_reranked then
    v_ranked := hydrator.rerank_memories(
      p_query_embedding, p_query_text, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, true,
      p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance, true
    );
    v_duplicates_of := v_ranked.duplicates_of;
  else
    v_ranked := hydrator.rank_hybrid(
      p_query_embedding, p_query_text, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, true
    );
  end if;
  if not v_by_vector_alone then
    v_scores := v_ranked.scores;
    v_vector_ranks := v_ranked.vector_ranks;
    v_text_ranks := v_ranked.text_ranks;
  end if;

  if v_ranked.has_pinned then
    with pinned as (
      select
        m.namespace, m.memory_id, m.content_tokens,
        case when m.embedding is not null then
          (m.embedding operator(@extension_schema@.@distance_operator@)
            p_query_embedding::@extension_schema@.@vector_type@) + 0
        end as distance
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.pinned
        and (p_min_confidence is null or m.confidence >= p_min_confidence::real)
        and (p_source_types is null or m.source_type = any (p_source_types))
      order by m.confidence desc, m.memory_id, m.namespace
    )
    select
      array_agg(p.namespace) || v_ranked.namespaces, array_agg(p.memory_id) || v_ranked.memory_ids,
      array_agg(p.distance) || v_ranked.distances, array_agg(p.content_tokens) || v_ranked.tokens, count(*)
    into v_ranked.namespaces, v_ranked.memory_ids, v_ranked.distances, v_ranked.tokens, v_pinned
    from pinned p;
  end if;

  -- Negative where the index alone exceeds the budget: then not even a memory of no tokens fits.
  v_relevant_budget := p_token_budget - v_index.index_tokens;
  v_left := v_relevant_budget;
  for i in 1 .. cardinality(v_ranked.memory_ids) loop
    v_reasons[i] := case
      when v_duplicates_of[i - v_pinned] is not null then 'duplicate_of'
      when i <= v_pinned and v_relevant_budget - v_left + v_ranked.tokens[i] > floor(v_relevant_budget / 2.0)
        then 'pinned_share'
      when v_cut_off then 'after_cutoff'
      when v_ranked.tokens[i] > v_left then 'over_budget'
    end;
    if v_reasons[i] is null then
      v_left := v_left - v_ranked.tokens[i];
    elsif p_packing = 'stop' and v_reasons[i] = 'over_budget' then
      v_cut_off := true;
    end if;
  end loop;

  if num_nonnulls(variadic v_reasons) > 0 then
    select json_agg(r)
    into v_dropped
    from (
      select
        m.memory_id, m.heading,
        case when v_by_vector_alone and p.place > 0 then @similarity(c.distance)@ else v_scores[p.place] end as score,
        c.distance,
        case when v_by_vector_alone and p.place > 0 then p.place else v_vector_ranks[p.place] end as vector_rank,
        v_text_ranks[p.place] as text_rank, c.tokens, c.reason, v_duplicates_of[p.place] as duplicate_of
      from unnest(v_ranked.namespaces, v_ranked.memory_ids, v_ranked.distances, v_ranked.tokens, v_reasons)
        with ordinality c (namespace, memory_id, distance, tokens, reason, ordinality)
      cross join lateral (select c.ordinality - v_pinned as place) p
      join hydrator.memories m on m.namespace = c.namespace and m.memory_id = c.memory_id
      where c.reason is not null
      order by c.ordinality
    ) r;
  end if;

  return query
  select
    v_index.index, coalesce(json_agg(r), '[]'), coalesce(v_dropped, '[]'),
    v_index.index_tokens::integer, (v_relevant_budget - v_left)::integer, (p_token_budget - v_left)::integer,
    p_token_budget, v_dropped is not null, v_relevant_budget < 0, v_index.index_shown::integer,
    (case when p_index_budget is null then v_index.index_shown else v_ranked.live_rows end)::integer,
    v_ranked.ranked_by
  from (
    select
      m.memory_id, m.namespace, m.memory_type, m.heading, m.content, m.confidence, m.source_type,
      m.supersedes, m.expires_at, m.created_at, m.metadata, m.pinned,
      case when v_by_vector_alone and p.place > 0 then @similarity(c.distance)@ else v_scores[p.place] end as score,
      c.distance,
      case when v_by_vector_alone and p.place > 0 then p.place else v_vector_ranks[p.place] end as vector_rank,
      v_text_ranks[p.place] as text_rank, c.tokens
    from unnest(v_ranked.namespaces, v_ranked.memory_ids, v_ranked.distances, v_ranked.tokens, v_reasons)
      with ordinality c (namespace, memory_id, distance, tokens, reason, ordinality)
    -- Among the ranked ones: 0 or less for the pinned, which have neither score nor rank.
    cross join lateral (select c.ordinality - v_pinned as place) p
    join hydrator.memories m on m.namespace = c.namespace and m.memory_id = c.memory_id
    where c.reason is null
    order by c.ordinality
  ) r;
end
$function$;

comment on function hydrator.hydrate_session(
  @extension_schema@.vector, text[], integer, integer, integer, text, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) is 'A session''s context in one snapshot: the compact index, then the most relevant memories within the token budget.';
revoke execute on function hydrator.hydrate_session(
  @extension_schema@.vector, text[], integer, integer, integer, text, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) from public;
