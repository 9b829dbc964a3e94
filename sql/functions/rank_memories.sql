-- The ranking by vector, in its one place: the live memories nearest to the query, nearest first,
-- ties by memory_id, as parallel arrays; min(p_top_k, rankable live rows) of them, however the
-- ranking is made: where an approximate way falls short, the call finishes exactly. Beside them what
-- survey_namespaces() found. Behind rank_hybrid() and the calls, where they have no text;
-- hydrate_session() passes p_skip_pinned, since pinned memories take no place in its top-k.
-- Raises MH001, MH002, MH003, MH005, MH009.
--
-- Reads, by the way that choose_ranking() finds: the vectors of the namespaces' live rows
-- (exact); their signs, and the vectors of the best p_top_k (at least 5) times
-- hydrator.rerank_factor (bits); or what an HNSW scan visits.
-- Plans are generic, and the disabled ways leave the planner one plan for each statement, so
-- that none is kept that was made for another tenant.
create function hydrator.rank_memories(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_top_k integer,
  p_memory_types text[],
  p_min_similarity double precision,
  p_metadata jsonb,
  p_embedding_model text,
  p_min_confidence double precision,
  p_source_types text[],
  p_skip_pinned boolean,
  out namespaces text[],
  out memory_ids uuid[],
  out distances double precision[],
  out tokens integer[],
  out ranked_by text,
  out live_rows bigint,
  out has_pinned boolean
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_sort = off
set enable_bitmapscan = off
as $function$
declare
  v_query constant @extension_schema@.@vector_type@ := hydrator.check_embedding('query_embedding', p_query_embedding);
  v_checked constant boolean := hydrator.check_namespaces(p_namespaces)
    and hydrator.check_count('top_k', p_top_k)
    and (p_min_similarity is null or hydrator.check_floor('min_similarity', p_min_similarity))
    and (p_min_confidence is null or hydrator.check_floor('min_confidence', p_min_confidence));
  v_survey constant record := hydrator.survey_namespaces(p_namespaces, p_embedding_model);
  -- Asked once, and not each filter of each row.
  v_unfiltered constant boolean := num_nonnulls(p_memory_types, p_metadata, p_min_confidence, p_source_types) = 0
    and not (p_skip_pinned and v_survey.has_pinned);
  v_bits bit(@dimensions@);
  v_candidates bigint;
  v_furthest double precision;
  v_visited integer;
  v_ef_search text;
  v_iterative_scan text;
  v_kept integer;
begin
  if v_survey.has_other_models then
    perform hydrator.check_embedding_model(p_embedding_model, p_namespaces);
  end if;
  live_rows := v_survey.live_rows;
  has_pinned := v_survey.has_pinned;
  ranked_by := hydrator.choose_ranking(
    live_rows, num_nonnulls(p_metadata, p_min_confidence, p_source_types) > 0
  );

  if ranked_by = 'bits' then
    v_bits := @extension_schema@.binary_quantize(v_query)::bit(@dimensions@);
    -- A nearest one or two need no fewer candidates than five.
    v_candidates := least(greatest(p_top_k, 5)::bigint * hydrator.setting('rerank_factor'), 1000000000);
    -- The furthest of as many candidates among the first rows: none that is further than it can be
    -- one among all, and what is left out here need not be sorted.
    select case when count(*) < v_candidates then 'Infinity' else max(c.distance) end
    into v_furthest
    from (
      select f.distance
      from (
        select m.embedding_bits operator(@extension_schema@.<~>) v_bits as distance
        from hydrator.live_memories m
        where m.namespace = any (p_namespaces collate "C")
          and m.embedding_bits is not null
          and (v_unfiltered
            or (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
            and not (p_skip_pinned and m.pinned))
        limit v_candidates * 8
      ) f
      order by f.distance
      limit v_candidates
    ) c;

    with candidate as materialized (
      select
        m.embedding_bits operator(@extension_schema@.<~>) v_bits as distance, m.memory_id, m.namespace
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.embedding_bits operator(@extension_schema@.<~>) v_bits <= v_furthest
        and (v_unfiltered
          or (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
          and not (p_skip_pinned and m.pinned))
      order by 1
      limit v_candidates
    ),
    nearest as (
      select
        (m.embedding operator(@extension_schema@.@distance_operator@) v_query) + 0 as distance,
        c.memory_id, c.namespace, m.content_tokens
      from candidate c
      join hydrator.memories m on m.namespace = c.namespace and m.memory_id = c.memory_id
      order by 1, c.memory_id, c.namespace
      limit p_top_k
    )
    select array_agg(n.namespace), array_agg(n.memory_id), array_agg(n.distance), array_agg(n.content_tokens)
    into namespaces, memory_ids, distances, tokens
    from nearest n;
  elsif ranked_by = 'hnsw' then
    v_ef_search := current_setting('hnsw.ef_search', true);
    v_iterative_scan := current_setting('hnsw.iterative_scan', true);
    -- The larger the graph, the further a search looks, lest it ends in a cluster beside the nearest.
    select least(greatest(
      hydrator.setting('ef_search') * (greatest(c.reltuples, 125000) / 125000) ^ (2 / 3.0), p_top_k * 2.0, 1
    ), 1000)::integer
    into v_visited
    from pg_class c
    where c.oid = 'hydrator.memories'::regclass;
    perform set_config('hnsw.ef_search', v_visited::text, true);
    if v_iterative_scan is not null then
      perform set_config('hnsw.iterative_scan', 'relaxed_order', true);
    end if;

    with visited as materialized (
      select
        m.namespace, m.memory_id, m.content_tokens,
        m.embedding operator(@extension_schema@.@distance_operator@) v_query as distance
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and (v_unfiltered
          or (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
          and (p_metadata is null or m.metadata @> p_metadata)
          and (p_min_confidence is null or m.confidence >= p_min_confidence::real)
          and (p_source_types is null or m.source_type = any (p_source_types))
          and not (p_skip_pinned and m.pinned))
      order by m.embedding operator(@extension_schema@.@distance_operator@) v_query
      -- In relaxed order, what is found late may be nearer than what was found first.
      limit p_top_k::bigint * 2
    ),
    nearest as (
      select v.distance + 0 as distance, v.memory_id, v.namespace, v.content_tokens
      from visited v
      order by 1, v.memory_id, v.namespace
      limit p_top_k
    )
    select array_agg(n.namespace), array_agg(n.memory_id), array_agg(n.distance), array_agg(n.content_tokens)
    into namespaces, memory_ids, distances, tokens
    from nearest n;

    -- They would hold until the caller's transaction ends.
    perform set_config('hnsw.ef_search', v_ef_search, true);
    if v_iterative_scan is not null then
      perform set_config('hnsw.iterative_scan', v_iterative_scan, true);
    end if;
  end if;

  if ranked_by = 'exact' or coalesce(cardinality(memory_ids), 0) < p_top_k then
    ranked_by := 'exact';
    with nearest as (
      -- The + 0 keeps an approximate index from answering for an exact scan.
      select
        (m.embedding operator(@extension_schema@.@distance_operator@) v_query) + 0 as distance,
        m.memory_id, m.namespace, m.content_tokens
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.embedding is not null
        and (v_unfiltered
          or (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
          and (p_metadata is null or m.metadata @> p_metadata)
          and (p_min_confidence is null or m.confidence >= p_min_confidence::real)
          and (p_source_types is null or m.source_type = any (p_source_types))
          and not (p_skip_pinned and m.pinned))
      order by 1, m.memory_id, m.namespace
      limit p_top_k
    )
    select array_agg(n.namespace), array_agg(n.memory_id), array_agg(n.distance), array_agg(n.content_tokens)
    into namespaces, memory_ids, distances, tokens
    from nearest n;
  end if;

  if memory_ids is null then
    namespaces := '{}';
    memory_ids := '{}';
    distances := '{}';
    tokens := '{}';
  end if;

  if p_min_similarity is not null then
    -- The floor after the limit, since similarity falls as distance grows; both as real, so that a
    -- similarity equal to the floor passes.
    select count(*) into v_kept
    from unnest(distances) d (distance)
    where @similarity(d.distance)@::real >= p_min_similarity::real;
    namespaces := namespaces[:v_kept];
    memory_ids := memory_ids[:v_kept];
    distances := distances[:v_kept];
    tokens := tokens[:v_kept];
  end if;
end
$function$;

comment on function hydrator.rank_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, double precision, text[], boolean
) is 'The live memories nearest to a query, nearest first: parallel arrays, how they were ranked, and what the survey found.';
revoke execute on function hydrator.rank_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, double precision, text[], boolean
) from public;
