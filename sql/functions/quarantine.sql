-- Takes a memory out of every call, as forget() does, and keeps it: purge() passes over it, and
-- release() brings it back. True if it was live. Raises MH010 for a blank reason. Writes one row.
create function hydrator.quarantine(
  p_namespace text,
  p_memory_id uuid,
  p_reason text default 'no reason given'
)
returns boolean
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  update hydrator.live_memories m
  set deleted_at = now(), quarantine_reason = coalesce(p_reason, 'no reason given')
  where m.namespace = p_namespace collate "C" and m.memory_id = p_memory_id;
  return found;
end
$function$;

comment on function hydrator.quarantine(text, uuid, text) is
  'Takes a memory out of every call without losing it; release() brings it back. True if it was live.';
revoke execute on function hydrator.quarantine(text, uuid, text) from public;
