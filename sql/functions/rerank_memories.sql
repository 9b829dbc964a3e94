-- The ranking where one of the parameters is given that are off by default; behind the calls that
-- rank_hybrid() is behind, and the same after every way of ranking: by vector, by text or both.
-- The best of rank_hybrid(), four times p_top_k but at least 50, are its candidates. A candidate's
-- worth is what its score is above the least candidate's, and then, in this order:
--
-- p_neighbours: the memories up to so many places (10 at most) before or after a candidate in its
-- source lend to each other and join the candidates, with a worth of 0, where they pass the
-- filters. One d places away lends 0.4 ^ d times its worth. A source is what has one namespace,
-- source_type and metadata #>> '{source,name}' (none is one too); its order is created_at,
-- memory_id.
-- p_recency_half_life: the worth halves each time that created_at is so much older.
-- p_confidence_weight: the worth is taken times confidence ^ p_confidence_weight.
-- p_duplicate_distance: a candidate whose vector is no further than this (in the installation's
-- measure) from one that is better ranked, of the same model and no duplicate itself, takes no
-- place. With p_tell_duplicates those that would have had one follow at the end, duplicates_of
-- saying of which.
--
-- The worth is the score; ties end by memory_id. A neighbour that joins has a distance, but no
-- rank by either side. Raises MH003 for a negative or NaN parameter or a half-life that is not
-- positive, and what rank_hybrid() raises. Reads what rank_hybrid() reads, the rows of the
-- candidates, with p_duplicate_distance their vectors (each is compared with each), and with
-- p_neighbours every live row of the namespaces.
create function hydrator.rerank_memories(
  p_query_embedding @extension_schema@.vector,
  p_query_text text,
  p_namespaces text[],
  p_top_k integer,
  p_memory_types text[],
  p_min_similarity double precision,
  p_metadata jsonb,
  p_embedding_model text,
  p_min_confidence double precision,
  p_source_types text[],
  p_skip_pinned boolean,
  p_neighbours integer,
  p_recency_half_life interval,
  p_confidence_weight double precision,
  p_duplicate_distance double precision,
  p_tell_duplicates boolean,
  out namespaces text[],
  out memory_ids uuid[],
  out scores double precision[],
  out distances double precision[],
  out vector_ranks integer[],
  out text_ranks integer[],
  out tokens integer[],
  out ranked_by text,
  out live_rows bigint,
  out has_pinned boolean,
  out duplicates_of uuid[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
declare
  v_half_life constant double precision := extract(epoch from p_recency_half_life);
  v_ranked record;
  v_pairs record;
  v_order integer[];
begin
  perform hydrator.check_count('top_k', p_top_k);
  if p_neighbours is not null then
    perform hydrator.check_count('neighbours', p_neighbours);
  end if;
  perform hydrator.check_floor('duplicate_distance', p_duplicate_distance);
  if v_half_life <= 0 or v_half_life = 'Infinity' then
    raise exception 'recency_half_life is %', p_recency_half_life
      using errcode = 'MH003', hint = 'Pass an interval above 0, or null to take no account of age.';
  end if;
  if p_confidence_weight < 0 or p_confidence_weight in ('NaN', 'Infinity') then
    raise exception 'confidence_weight is %', p_confidence_weight
      using errcode = 'MH003', hint = 'Pass 0 or more, or null to take no account of confidence.';
  end if;

  v_ranked := hydrator.rank_hybrid(
    p_query_embedding, p_query_text, p_namespaces,
    case when p_top_k > 0 then least(greatest(p_top_k::bigint * 4, 50), 2147483647)::integer else 0 end,
    p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
    p_min_confidence, p_source_types, p_skip_pinned
  );
  namespaces := v_ranked.namespaces;
  memory_ids := v_ranked.memory_ids;
  scores := array(select u.score - min(u.score) over () from unnest(v_ranked.scores) with ordinality u (score, rank) order by u.rank);
  distances := v_ranked.distances;
  vector_ranks := v_ranked.vector_ranks;
  text_ranks := v_ranked.text_ranks;
  ranked_by := v_ranked.ranked_by;
  live_rows := v_ranked.live_rows;
  has_pinned := v_ranked.has_pinned;

  if p_neighbours > 0 then
    select l.* into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks
    from hydrator.lend_worth(
      p_query_embedding, p_namespaces,
      p_memory_types, p_min_similarity, p_metadata, p_min_confidence, p_source_types, p_skip_pinned,
      p_neighbours, namespaces, memory_ids, scores, distances, vector_ranks, text_ranks
    ) l;
  end if;

  with worth as (
    select
      u.namespace, u.memory_id, u.distance, u.vector_rank, u.text_rank, m.content_tokens,
      floor(
        u.score
        -- What is below 2 ^ -1000 is worth nothing, and would be an underflow.
        * case when v_half_life is null then 1 else 0.5::double precision ^ least(
            greatest(extract(epoch from now() - m.created_at), 0)::double precision / v_half_life, 1000) end
        * case when p_confidence_weight is null then 1
            when m.confidence > 0 then exp(greatest(ln(m.confidence::double precision) * p_confidence_weight, -700))
            when p_confidence_weight = 0 then 1 else 0 end
        * 1e9 + 0.5
      ) / 1e9 as score
    from unnest(namespaces, memory_ids, scores, distances, vector_ranks, text_ranks)
      u (namespace, memory_id, score, distance, vector_rank, text_rank)
    join hydrator.memories m on m.namespace = u.namespace collate "C" and m.memory_id = u.memory_id
    order by 7 desc, u.memory_id, u.namespace collate "C"
  )
  select
    coalesce(array_agg(w.namespace), '{}'), coalesce(array_agg(w.memory_id), '{}'),
    coalesce(array_agg(w.score), '{}'), coalesce(array_agg(w.distance), '{}'),
    coalesce(array_agg(w.vector_rank), '{}'), coalesce(array_agg(w.text_rank), '{}'),
    coalesce(array_agg(w.content_tokens), '{}'), array_agg(null::uuid)
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks, tokens, duplicates_of
  from worth w;

  if p_duplicate_distance is not null then
    for v_pairs in
      with vector_of as materialized (
        select u.rank, m.embedding, m.embedding_model
        from unnest(namespaces, memory_ids) with ordinality u (namespace, memory_id, rank)
        join hydrator.memories m on m.namespace = u.namespace collate "C" and m.memory_id = u.memory_id
        where m.embedding is not null
      )
      select b.rank as better, w.rank as worse
      from vector_of b
      join vector_of w on w.rank > b.rank
      where b.embedding_model is not distinct from w.embedding_model
        and (b.embedding operator(@extension_schema@.@distance_operator@) w.embedding) <= p_duplicate_distance
      order by w.rank, b.rank
    loop
      if duplicates_of[v_pairs.better] is null and duplicates_of[v_pairs.worse] is null then
        duplicates_of[v_pairs.worse] := memory_ids[v_pairs.better];
      end if;
    end loop;
  end if;

  -- The places: the first p_top_k that are no duplicates, then the duplicates met before the last.
  select array_agg(d.rank::integer order by d.duplicate, d.rank)
  into v_order
  from (
    select
      u.rank, u.duplicate_of is not null as duplicate,
      count(*) filter (where u.duplicate_of is null) over (order by u.rank rows unbounded preceding) as place
    from unnest(duplicates_of) with ordinality u (duplicate_of, rank)
  ) d
  where case when d.duplicate then p_tell_duplicates and d.place < p_top_k else d.place <= p_top_k end;

  select
    coalesce(array_agg(namespaces[o.rank] order by o.place), '{}'),
    coalesce(array_agg(memory_ids[o.rank] order by o.place), '{}'),
    coalesce(array_agg(scores[o.rank] order by o.place), '{}'),
    coalesce(array_agg(distances[o.rank] order by o.place), '{}'),
    coalesce(array_agg(vector_ranks[o.rank] order by o.place), '{}'),
    coalesce(array_agg(text_ranks[o.rank] order by o.place), '{}'),
    coalesce(array_agg(tokens[o.rank] order by o.place), '{}'),
    coalesce(array_agg(duplicates_of[o.rank] order by o.place), '{}')
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks, tokens, duplicates_of
  from unnest(v_order) with ordinality o (rank, place);
end
$function$;

comment on function hydrator.rerank_memories(
  @extension_schema@.vector, text, text[], integer, text[], double precision, jsonb, text, double precision, text[],
  boolean, integer, interval, double precision, double precision, boolean
) is 'The ranking with neighbours, recency, confidence and near-duplicates taken into account: parallel arrays, best first.';
revoke execute on function hydrator.rerank_memories(
  @extension_schema@.vector, text, text[], integer, text[], double precision, jsonb, text, double precision, text[],
  boolean, integer, interval, double precision, double precision, boolean
) from public;
