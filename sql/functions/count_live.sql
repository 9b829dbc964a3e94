-- How many live memories the namespaces hold, at the same cost for any number of them: the
-- lasting ones by the counts that triggers keep, those that will expire one by one, in
-- memories_expiring_idx.
create function hydrator.count_live(p_namespaces text[])
returns bigint
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
begin
  return (
    select coalesce(sum(c.lasting), 0)
    from hydrator.namespace_counts c
    where c.namespace = any (p_namespaces collate "C")
  ) + (
    select count(*)
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C")
      and m.expires_at is not null
  );
end
$function$;

comment on function hydrator.count_live(text[]) is
  'The number of live memories in the namespaces, at the same cost for any number.';
revoke execute on function hydrator.count_live(text[]) from public;
