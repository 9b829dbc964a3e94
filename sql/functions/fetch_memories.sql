-- Progressive disclosure, second step: full live memories by id, in the order asked for
-- (an id asked for twice comes once). Ids that are not there, not live or not in the
-- namespaces are absent, without a difference between the three. Raises MH005 for null
-- namespaces and MH010 for null ids. Reads one row an id and namespace.
create function hydrator.fetch_memories(p_namespaces text[], p_memory_ids uuid[])
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
  created_at timestamptz,
  updated_at timestamptz,
  pinned boolean,
  metadata jsonb,
  embedding_model text,
  tokens integer
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
  if p_memory_ids is null then
    raise exception 'memory_ids is null'
      using errcode = 'MH010', hint = 'Pass the ids to fetch as an array; an empty one returns nothing.';
  end if;

  return query
  with asked as (
    select a.memory_id, min(a.ordinal) as ordinal
    from unnest(p_memory_ids) with ordinality a (memory_id, ordinal)
    group by a.memory_id
  )
  select
    m.memory_id, m.namespace, m.memory_type, m.heading, m.content, m.confidence, m.source_type,
    m.supersedes, m.expires_at, m.created_at, m.updated_at, m.pinned, m.metadata,
    m.embedding_model, m.content_tokens
  from asked
  join hydrator.live_memories m on m.memory_id = asked.memory_id
  where m.namespace = any (p_namespaces collate "C")
  order by asked.ordinal, m.namespace;
end
$function$;

comment on function hydrator.fetch_memories(text[], uuid[]) is
  'Full live memories by id, in the order asked for; what is absent, dead or elsewhere is left out.';
revoke execute on function hydrator.fetch_memories(text[], uuid[]) from public;
