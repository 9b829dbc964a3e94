-- Tier 1: what the agent knows, one line a live memory and nothing of the content. Best
-- confidence first, ties by memory_id. With a budget in tokens, the longest leading run
-- that fits. Raises MH003 for a negative budget and MH005 for null namespaces. Reads the
-- live rows of the namespaces.
create function hydrator.compact_index(p_namespaces text[], p_token_budget integer default null)
returns table (
  memory_id uuid,
  heading text,
  memory_type text,
  confidence real
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  if p_token_budget is not null then
    perform hydrator.check_count('token_budget', p_token_budget);
  end if;

  return query
  select e.memory_id, e.heading, e.memory_type, e.confidence
  from hydrator.index_json(p_namespaces, p_token_budget) i
  cross join lateral json_to_recordset(i.index)
    as e (memory_id uuid, heading text, memory_type text, confidence real);
end
$function$;

comment on function hydrator.compact_index(text[], integer) is
  'Tier 1: heading, type and confidence of every live memory, best confidence first; with a budget, what fits.';
revoke execute on function hydrator.compact_index(text[], integer) from public;
