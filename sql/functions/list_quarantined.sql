-- The memories in quarantine, latest first, ties by memory_id, with the reason. Raises MH005.
-- Reads them alone.
create function hydrator.list_quarantined(p_namespaces text[])
returns table (
  memory_id uuid,
  namespace text,
  heading text,
  source_type text,
  confidence real,
  quarantined_at timestamptz,
  reason text
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  perform hydrator.check_namespaces(p_namespaces);

  return query
  select m.memory_id, m.namespace, m.heading, m.source_type, m.confidence, m.deleted_at, m.quarantine_reason
  from hydrator.memories m
  where m.namespace = any (p_namespaces collate "C")
    and m.quarantine_reason is not null
  order by m.deleted_at desc, m.memory_id, m.namespace;
end
$function$;

comment on function hydrator.list_quarantined(text[]) is
  'The memories in quarantine, latest first, with the reason.';
revoke execute on function hydrator.list_quarantined(text[]) from public;
