-- The compact index as JSON, with its tokens and the number of its entries: best confidence
-- first, ties by memory_id. With a budget, the longest leading run whose summed tokens fit.
-- Behind compact_index() and hydrate_session(). Raises MH003 and MH005. Reads memories_live_idx
-- alone, in which the entries of a namespace stand in that order: all of them, or those that fit
-- and one; of each of several namespaces at most as many as the budget has tokens.
create function hydrator.index_json(
  p_namespaces text[],
  p_token_budget integer,
  out index json,
  out index_tokens bigint,
  out index_shown bigint
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_sort = off
as $function$
declare
  v_checked constant boolean := hydrator.check_namespaces(p_namespaces)
    and (p_token_budget is null or hydrator.check_count('index_budget', p_token_budget));
  v_namespace constant text collate "C" := p_namespaces[array_lower(p_namespaces, 1)];
  v_entries json[] := '{}';
  v_entry json;
  v_tokens integer;
  v_left integer := p_token_budget;
begin
  if cardinality(p_namespaces) = 1 and p_token_budget is null then
    select json_agg(e.index_entry), coalesce(sum(e.index_tokens), 0), count(*)
    into index, index_tokens, index_shown
    from (
      select m.index_entry, m.index_tokens
      from hydrator.live_memories m
      where m.namespace = v_namespace
      order by m.confidence desc, m.memory_id
    ) e;
  elsif cardinality(p_namespaces) = 1 then
    -- The order is the index's: nothing is sorted, and nothing read beyond what fits.
    for v_entry, v_tokens in
      select m.index_entry, m.index_tokens
      from hydrator.live_memories m
      where m.namespace = v_namespace
      order by m.confidence desc, m.memory_id
    loop
      exit when v_tokens > v_left;
      v_left := v_left - v_tokens;
      v_entries := array_append(v_entries, v_entry);
    end loop;
    index := array_to_json(v_entries);
    index_shown := cardinality(v_entries);
    index_tokens := p_token_budget - v_left;
  else
    with leading_entry as (
      -- An entry has a token at least, so that no more than the budget can fit.
      select e.*
      from (select distinct u.namespace from unnest(p_namespaces) u (namespace)) n
      cross join lateral (
        select m.namespace, m.memory_id, m.confidence, m.index_entry, m.index_tokens
        from hydrator.live_memories m
        where m.namespace = n.namespace collate "C"
        order by m.confidence desc, m.memory_id
        limit p_token_budget
      ) e
    ),
    entry as (
      select
        l.index_entry, l.index_tokens,
        sum(l.index_tokens) over (
          order by l.confidence desc, l.memory_id, l.namespace
          rows between unbounded preceding and current row
        ) as running_tokens
      from leading_entry l
    )
    -- In the order of the window.
    select json_agg(e.index_entry), coalesce(sum(e.index_tokens), 0), count(*)
    into index, index_tokens, index_shown
    from entry e
    where p_token_budget is null or e.running_tokens <= p_token_budget;
  end if;

  -- Not by coalesce(), which would copy it.
  if index is null then
    index := '[]';
  end if;
end
$function$;

comment on function hydrator.index_json(text[], integer) is
  'The compact index as JSON, its tokens and the number of its entries; see compact_index().';
revoke execute on function hydrator.index_json(text[], integer) from public;
