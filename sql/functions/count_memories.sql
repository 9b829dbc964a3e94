-- Keeps namespace_counts, a statement at a time. A backend's first write to a namespace also
-- takes over the rows of backends that have ended. Writes a row for each namespace.
create function hydrator.count_memories()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_change record;
begin
  if tg_op = 'TRUNCATE' then
    delete from hydrator.namespace_counts;
    return null;
  end if;

  -- A trigger has the transition tables of its event alone, so each event asks for its own.
  for v_change in execute
    'select c.namespace, sum(c.change) as change from ('
    || case when tg_op <> 'DELETE' then
      'select namespace, 1 as change from new_rows where deleted_at is null and expires_at is null' else '' end
    || case when tg_op = 'UPDATE' then ' union all ' else '' end
    || case when tg_op <> 'INSERT' then
      'select namespace, -1 from old_rows where deleted_at is null and expires_at is null' else '' end
    || ') c (namespace, change) group by c.namespace having sum(c.change) <> 0 order by c.namespace'
  loop
    update hydrator.namespace_counts c
    set lasting = c.lasting + v_change.change
    where c.namespace = v_change.namespace and c.writer = pg_backend_pid();
    continue when found;

    with swept as (
      delete from hydrator.namespace_counts c
      where c.namespace = v_change.namespace
        and c.writer in (
          select o.writer
          from hydrator.namespace_counts o
          where o.namespace = v_change.namespace
            and not exists (select from pg_stat_get_activity(null) a where a.pid = o.writer)
            -- At a stricter level, a row that another backend has taken over would be an error.
            and current_setting('transaction_isolation') = 'read committed'
          for update skip locked
        )
      returning c.lasting
    )
    insert into hydrator.namespace_counts as c (namespace, writer, lasting)
    select v_change.namespace, pg_backend_pid(), v_change.change + coalesce(sum(s.lasting), 0)
    from swept s
    on conflict (namespace, writer) do update set lasting = c.lasting + excluded.lasting;
  end loop;
  return null;
end
$function$;

comment on function hydrator.count_memories() is
  'Trigger: keeps the counts of lasting memories by namespace.';
revoke execute on function hydrator.count_memories() from public;
