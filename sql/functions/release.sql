-- Brings a memory back from quarantine; true if it was there. Raises MH007 where another memory
-- has superseded it since. Writes one row.
create function hydrator.release(p_namespace text, p_memory_id uuid)
returns boolean
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  update hydrator.memories m
  set deleted_at = null
  where m.namespace = p_namespace collate "C"
    and m.memory_id = p_memory_id
    and m.quarantine_reason is not null;
  return found;
end
$function$;

comment on function hydrator.release(text, uuid) is
  'Brings a memory back from quarantine; true if it was there.';
revoke execute on function hydrator.release(text, uuid) from public;
