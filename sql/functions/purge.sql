-- Removes for good what has been dead (deleted, superseded or expired) for longer than
-- p_older_than, in every namespace, and returns the number of rows. What superseded a
-- removed memory stays, without a predecessor; what is in quarantine stays too. Raises MH003 for a null or negative
-- interval. For a scheduled job: reads the whole table.
create function hydrator.purge(p_older_than interval)
returns bigint
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_purged bigint;
begin
  -- By the clock, since an interval's parts may differ in sign ('-12 months 360 days').
  if p_older_than is null or now() - p_older_than > now() then
    raise exception 'older_than is %', coalesce(p_older_than::text, 'null')
      using errcode = 'MH003', hint = 'Pass how long a memory must have been dead, such as interval ''30 days''.';
  end if;

  -- least() passes over nulls: the moment of death, whichever came first.
  delete from hydrator.memories m
  where least(m.deleted_at, m.expires_at) < now() - p_older_than
    and m.quarantine_reason is null;
  get diagnostics v_purged = row_count;
  return v_purged;
end
$function$;

comment on function hydrator.purge(interval) is
  'Physically removes the memories that have been dead for longer than this; the number of rows.';
revoke execute on function hydrator.purge(interval) from public;
