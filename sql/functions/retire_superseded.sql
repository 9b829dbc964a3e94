-- Retires the memory that a new one supersedes; guard_memory() has checked and locked it.
-- Writes one row, or none where it was dead already.
create function hydrator.retire_superseded()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  update hydrator.memories m
  set deleted_at = now()
  where m.namespace = new.namespace and m.memory_id = new.supersedes and m.deleted_at is null;
  return null;
end
$function$;

comment on function hydrator.retire_superseded() is
  'Trigger: soft-deletes the memory that a new one supersedes.';
revoke execute on function hydrator.retire_superseded() from public;
