-- What the neighbours of p_places lend to one another, for rerank_memories(), which says how: its
-- candidates as parallel arrays, with the worth they have now, and all that joined them. Reads
-- every live row of the namespaces. Plans hash, since how many rows those are is not known to a
-- generic plan.
create function hydrator.lend_worth(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_memory_types text[],
  p_min_similarity double precision,
  p_metadata jsonb,
  p_min_confidence double precision,
  p_source_types text[],
  p_skip_pinned boolean,
  p_places integer,
  p_candidate_namespaces text[],
  p_memory_ids uuid[],
  p_scores double precision[],
  p_distances double precision[],
  p_vector_ranks integer[],
  p_text_ranks integer[],
  out namespaces text[],
  out memory_ids uuid[],
  out scores double precision[],
  out distances double precision[],
  out vector_ranks integer[],
  out text_ranks integer[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_nestloop = off
as $function$
declare
  v_query constant @extension_schema@.@vector_type@ := p_query_embedding::@extension_schema@.@vector_type@;
  v_places constant integer := greatest(least(p_places, 10), 0);
begin
  with candidate as (
    select u.namespace collate "C" as namespace, u.memory_id, u.score, u.distance, u.vector_rank, u.text_rank, u.rank
    from unnest(p_candidate_namespaces, p_memory_ids, p_scores, p_distances, p_vector_ranks, p_text_ranks)
      with ordinality u (namespace, memory_id, score, distance, vector_rank, text_rank, rank)
  ),
  placed as materialized (
    select
      m.namespace, m.memory_id, row_number() over by_source as place,
      row_number() over by_source - row_number() over (
        partition by m.namespace, m.source_type, coalesce(m.metadata #>> '{source,name}', '') collate "C"
        order by m.created_at, m.memory_id
      ) as source,
      (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
        and (p_metadata is null or m.metadata @> p_metadata)
        and (p_min_confidence is null or m.confidence >= p_min_confidence::real)
        and (p_source_types is null or m.source_type = any (p_source_types))
        and not (p_skip_pinned and m.pinned) as passes
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C")
    window by_source as (
      order by m.namespace, m.source_type, coalesce(m.metadata #>> '{source,name}', '') collate "C",
        m.created_at, m.memory_id
    )
  ),
  lender as (
    select p.source, p.place, c.score, c.rank
    from candidate c
    join placed p on p.namespace = c.namespace and p.memory_id = c.memory_id
  ),
  lent as (
    select l.source, l.place + o.places as place, sum(l.score * 0.4::double precision ^ abs(o.places) order by l.rank) as score
    from lender l
    cross join generate_series(-v_places, v_places) o (places)
    group by 1, 2
  ),
  joined as (
    select p.namespace, p.memory_id, l.score, c.distance, c.vector_rank, c.text_rank, c.rank
    from lent l
    join placed p on p.place = l.place and p.source = l.source
    left join candidate c on c.namespace = p.namespace and c.memory_id = p.memory_id
    where p.passes or c.rank is not null
  )
  select
    coalesce(array_agg(j.namespace), '{}'), coalesce(array_agg(j.memory_id), '{}'), coalesce(array_agg(j.score), '{}'),
    coalesce(array_agg(j.distance), '{}'), coalesce(array_agg(j.vector_rank), '{}'), coalesce(array_agg(j.text_rank), '{}')
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks
  from joined j;

  if v_query is null then
    return;
  end if;
  -- What joined has its distance still to come, and the floor to reach.
  with measured as (
    select
      u.*, coalesce(u.distance, (m.embedding operator(@extension_schema@.@distance_operator@) v_query) + 0) as measured
    from unnest(namespaces, memory_ids, scores, distances, vector_ranks, text_ranks)
      u (namespace, memory_id, score, distance, vector_rank, text_rank)
    join hydrator.memories m on m.namespace = u.namespace collate "C" and m.memory_id = u.memory_id
    where m.namespace = any (p_namespaces collate "C")
      and m.memory_id = any (memory_ids)
  )
  select
    coalesce(array_agg(m.namespace), '{}'), coalesce(array_agg(m.memory_id), '{}'), coalesce(array_agg(m.score), '{}'),
    coalesce(array_agg(m.measured), '{}'), coalesce(array_agg(m.vector_rank), '{}'), coalesce(array_agg(m.text_rank), '{}')
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks
  from measured m
  where p_min_similarity is null
    or coalesce(hydrator.similarity(m.measured)::real >= p_min_similarity::real, false);
end
$function$;

comment on function hydrator.lend_worth(
  @extension_schema@.vector, text[], text[], double precision, jsonb, double precision, text[], boolean, integer,
  text[], uuid[], double precision[], double precision[], integer[], integer[]
) is 'Candidates and their neighbours in their sources, with what these lend to one another: parallel arrays.';
revoke execute on function hydrator.lend_worth(
  @extension_schema@.vector, text[], text[], double precision, jsonb, double precision, text[], boolean, integer,
  text[], uuid[], double precision[], double precision[], integer[], integer[]
) from public;
