-- A session's context in one call and one snapshot: the compact index, then the most
-- relevant memories in full, as far as the token budget goes.
--
-- The index always loads: whole, or with p_index_budget the leading run that fits. Pinned
-- memories come next (by confidence, then memory_id; the filters do not apply to them) and
-- may use at most half of what the index left. Then the top-k in rank order: packing 'stop'
-- ends at the first that would exceed the budget, 'skip' passes over it and goes on. Every
-- candidate that was not accepted is in dropped, with its reason: pinned_share, over_budget
-- or after_cutoff.
--
-- Raises MH004 for an unknown packing and what index_entries() and rank_memories() raise.
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
  p_embedding_model text default null
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
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set extra_float_digits = 1
as $function$
declare
  -- One element a candidate, pinned ones first, then rank order.
  v_namespaces text[];
  v_memory_ids uuid[];
  v_pinned boolean[];
  v_distances double precision[];
  v_tokens integer[];
  v_reasons text[];
  v_left bigint;
  v_pinned_left bigint;
  v_cut_off boolean := false;
begin
  if p_packing is null or p_packing not in ('stop', 'skip') then
    raise exception 'packing is %', coalesce(quote_literal(p_packing), 'null')
      using errcode = 'MH004', hint = 'packing is ''stop'' or ''skip''.';
  end if;
  perform hydrator.check_count('token_budget', p_token_budget);
  perform hydrator.check_embedding('query_embedding', p_query_embedding);

  select
    coalesce(json_agg(json_build_object(
      'memory_id', e.memory_id, 'heading', e.heading,
      'memory_type', e.memory_type, 'confidence', e.confidence
    ) order by e.ordinality), '[]'),
    coalesce(sum(e.index_tokens), 0),
    count(*)
  into index, index_tokens, index_shown
  from hydrator.index_entries(p_namespaces, p_index_budget) with ordinality e;

  index_total := index_shown;
  if p_index_budget is not null then
    select count(*) into index_total
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C");
  end if;

  with candidate as (
    select
      m.namespace, m.memory_id, m.pinned, m.content_tokens,
      case when m.embedding is not null then
        (m.embedding operator(@extension_schema@.@distance_operator@)
          p_query_embedding::@extension_schema@.@vector_type@) + 0
      end as distance,
      row_number() over (order by m.confidence desc, m.memory_id, m.namespace) as ordinal
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C")
      and m.pinned
    union all
    select m.namespace, m.memory_id, m.pinned, m.content_tokens, r.distance, r.ordinality
    from hydrator.rank_memories(
      p_query_embedding, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model, true
    ) with ordinality r
    join hydrator.memories m on m.namespace = r.namespace and m.memory_id = r.memory_id
  )
  select
    array_agg(c.namespace order by c.pinned desc, c.ordinal),
    array_agg(c.memory_id order by c.pinned desc, c.ordinal),
    array_agg(c.pinned order by c.pinned desc, c.ordinal),
    array_agg(c.distance order by c.pinned desc, c.ordinal),
    array_agg(c.content_tokens order by c.pinned desc, c.ordinal)
  into v_namespaces, v_memory_ids, v_pinned, v_distances, v_tokens
  from candidate c;

  -- Negative where the index alone exceeds the budget: then not even a memory of no tokens fits.
  v_left := p_token_budget - index_tokens;
  v_pinned_left := floor(v_left / 2.0);
  for i in 1 .. coalesce(array_length(v_memory_ids, 1), 0) loop
    v_reasons[i] := case
      when v_pinned[i] and v_tokens[i] > v_pinned_left then 'pinned_share'
      when v_cut_off then 'after_cutoff'
      when v_tokens[i] > v_left then 'over_budget'
    end;
    if v_reasons[i] is null then
      v_left := v_left - v_tokens[i];
      v_pinned_left := v_pinned_left - v_tokens[i];
    elsif v_reasons[i] = 'over_budget' and p_packing = 'stop' then
      v_cut_off := true;
    end if;
  end loop;

  select
    coalesce(json_agg(json_build_object(
      'memory_id', m.memory_id, 'namespace', m.namespace, 'memory_type', m.memory_type,
      'heading', m.heading, 'content', m.content, 'confidence', m.confidence,
      'source_type', m.source_type, 'supersedes', m.supersedes, 'expires_at', m.expires_at,
      'created_at', m.created_at, 'metadata', m.metadata, 'pinned', m.pinned,
      'distance', c.distance, 'tokens', c.tokens
    ) order by c.ordinality) filter (where c.reason is null), '[]'),
    coalesce(json_agg(json_build_object(
      'memory_id', m.memory_id, 'heading', m.heading,
      'distance', c.distance, 'tokens', c.tokens, 'reason', c.reason
    ) order by c.ordinality) filter (where c.reason is not null), '[]'),
    coalesce(sum(c.tokens) filter (where c.reason is null), 0),
    coalesce(bool_or(c.reason is not null), false)
  into relevant, dropped, relevant_tokens, truncated
  from unnest(v_namespaces, v_memory_ids, v_distances, v_tokens, v_reasons)
    with ordinality c (namespace, memory_id, distance, tokens, reason)
  join hydrator.memories m on m.namespace = c.namespace and m.memory_id = c.memory_id;

  tokens_used := index_tokens + relevant_tokens;
  token_budget := p_token_budget;
  over_budget := index_tokens > p_token_budget;
  ranked_by := 'exact';
  return next;
end
$function$;

comment on function hydrator.hydrate_session(
  @extension_schema@.vector, text[], integer, integer, integer, text, text[], double precision, jsonb, text
) is 'A session''s context in one snapshot: the compact index, then the most relevant memories within the token budget.';
revoke execute on function hydrator.hydrate_session(
  @extension_schema@.vector, text[], integer, integer, integer, text, text[], double precision, jsonb, text
) from public;
