-- The entries of the compact index with what each costs, in its order: best confidence
-- first, ties by memory_id. With a budget, the longest leading run whose summed tokens
-- fit. Behind compact_index() and hydrate_session(). Raises MH003 and MH005. Reads the
-- live rows of the namespaces, all of it in memories_live_idx.
create function hydrator.index_entries(p_namespaces text[], p_token_budget integer)
returns table (
  memory_id uuid,
  heading text,
  memory_type text,
  confidence real,
  index_tokens integer
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  perform hydrator.check_namespaces(p_namespaces);
  if p_token_budget is not null then
    perform hydrator.check_count('index_budget', p_token_budget);
  end if;

  return query
  with entry as (
    select
      m.memory_id, m.namespace, m.heading, m.memory_type, m.confidence, m.index_tokens,
      sum(m.index_tokens) over (
        order by m.confidence desc, m.memory_id, m.namespace
        rows between unbounded preceding and current row
      ) as running_tokens
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C")
  )
  select e.memory_id, e.heading, e.memory_type, e.confidence, e.index_tokens
  from entry e
  where p_token_budget is null or e.running_tokens <= p_token_budget
  order by e.confidence desc, e.memory_id, e.namespace;
end
$function$;

comment on function hydrator.index_entries(text[], integer) is
  'The compact index with the tokens of each entry; see compact_index().';
revoke execute on function hydrator.index_entries(text[], integer) from public;
