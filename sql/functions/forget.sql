-- Takes a memory out of every call, without removing its row: true if it was live.
-- Another namespace's memory, an unknown or a dead one gives false. Writes one row.
create function hydrator.forget(p_namespace text, p_memory_id uuid)
returns boolean
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  update hydrator.live_memories m
  set deleted_at = now()
  where m.namespace = p_namespace collate "C" and m.memory_id = p_memory_id;
  return found;
end
$function$;

comment on function hydrator.forget(text, uuid) is
  'Soft-deletes a memory; true if it was live.';
revoke execute on function hydrator.forget(text, uuid) from public;
