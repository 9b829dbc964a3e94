-- Pairs of live memories of one namespace whose vectors, of one model, are no further apart than
-- p_distance (in the installation's measure), nearest first, ties by their ids; each pair once.
-- For a report: compares every vector of a namespace with every other. Raises MH003 and MH005.
create function hydrator.near_duplicates(
  p_namespaces text[],
  p_distance double precision default 0.05,
  p_limit integer default 20
)
returns table (
  namespace text,
  memory_id uuid,
  heading text,
  other_memory_id uuid,
  other_heading text,
  distance double precision
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
begin
  perform hydrator.check_namespaces(p_namespaces);
  perform hydrator.check_count('limit', p_limit);
  if p_distance is null or p_distance = 'NaN' then
    raise exception 'distance is %', coalesce(p_distance::text, 'null')
      using errcode = 'MH003', hint = 'Pass the largest distance at which two memories count as near.';
  end if;

  return query
  with vector_of as materialized (
    select m.namespace, m.memory_id, m.heading, m.embedding, m.embedding_model
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C") and m.embedding is not null
  )
  select o.namespace, o.memory_id, o.heading, t.memory_id, t.heading, d.distance
  from vector_of o
  join vector_of t on t.namespace = o.namespace and t.memory_id > o.memory_id
  cross join lateral (
    select o.embedding operator(@extension_schema@.@distance_operator@) t.embedding as distance
  ) d
  where o.embedding_model is not distinct from t.embedding_model
    and d.distance <= p_distance
  order by d.distance, o.memory_id, t.memory_id, o.namespace
  limit p_limit;
end
$function$;

comment on function hydrator.near_duplicates(text[], double precision, integer) is
  'Pairs of live memories of a namespace whose vectors are near one another, nearest first.';
revoke execute on function hydrator.near_duplicates(text[], double precision, integer) from public;
