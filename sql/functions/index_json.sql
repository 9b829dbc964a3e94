-- The compact index as JSON, with its tokens and the number of its entries: best confidence
-- first, ties by memory_id. With a budget, the longest leading run whose summed tokens fit.
-- Behind compact_index() and hydrate_session(). Raises MH003 and MH005. Reads memories_live_idx
-- alone, in which the entries of a namespace stand in that order: all of them, or about as many
-- as fit.
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
as $function$
declare
  -- A guess at how many entries fit, at eight tokens each; more are read where they do.
  v_limit integer := p_token_budget / 8 + 1;
  v_read bigint;
  v_tokens_read bigint;
begin
  perform hydrator.check_namespaces(p_namespaces);
  if p_token_budget is not null then
    perform hydrator.check_count('index_budget', p_token_budget);
  end if;

  loop
    with leading_entry as (
      select e.*
      from (select distinct u.namespace from unnest(p_namespaces) u (namespace)) n
      cross join lateral (
        select m.namespace, m.memory_id, m.confidence, m.index_entry, m.index_tokens
        from hydrator.live_memories m
        where m.namespace = n.namespace collate "C"
        order by m.confidence desc, m.memory_id
        limit v_limit
      ) e
      order by e.confidence desc, e.memory_id, e.namespace
      limit v_limit
    ),
    entry as (
      select
        l.*,
        sum(l.index_tokens) over (
          order by l.confidence desc, l.memory_id, l.namespace
          rows between unbounded preceding and current row
        ) as running_tokens
      from leading_entry l
    ),
    shown as (
      select e.*, p_token_budget is null or e.running_tokens <= p_token_budget as fits
      from entry e
    )
    -- In the order of the window.
    select
      json_agg(s.index_entry) filter (where s.fits),
      coalesce(sum(s.index_tokens) filter (where s.fits), 0),
      count(*) filter (where s.fits),
      count(*),
      sum(s.index_tokens)
    into index, index_tokens, index_shown, v_read, v_tokens_read
    from shown s;

    exit when v_limit is null or v_read < v_limit or v_tokens_read > p_token_budget;
    v_limit := least(v_limit::bigint * 4, 2147483647);
  end loop;

  index := coalesce(index, '[]');
end
$function$;

comment on function hydrator.index_json(text[], integer) is
  'The compact index as JSON, its tokens and the number of its entries; see compact_index().';
revoke execute on function hydrator.index_json(text[], integer) from public;
