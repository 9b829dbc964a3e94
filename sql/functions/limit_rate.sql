-- Holds the memories that are written into a namespace in an hour of the clock to the setting
-- hydrator.max_memories_per_hour, a statement at a time; by default there is no limit, and nothing
-- is read or written. What other transactions have not yet committed is not seen, so that many at
-- once may go over by as much. Raises MH012. Writes a row for each namespace.
create function hydrator.limit_rate()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_limit constant integer := hydrator.setting('max_memories_per_hour');
  v_hour constant timestamptz := date_trunc('hour', now());
  v_new record;
  v_written bigint;
begin
  if v_limit = 0 then
    return null;
  end if;

  for v_new in select n.namespace, count(*) as written from new_rows n group by n.namespace order by n.namespace loop
    update hydrator.namespace_rates r
    set hour = v_hour, written = v_new.written + case when r.hour = v_hour then r.written else 0 end
    where r.namespace = v_new.namespace and r.writer = pg_backend_pid();
    if not found then
      -- A backend's first memory takes the rows of earlier hours away.
      delete from hydrator.namespace_rates r
      where r.namespace = v_new.namespace
        and r.writer in (
          select o.writer
          from hydrator.namespace_rates o
          where o.namespace = v_new.namespace
            and o.hour < v_hour
            and current_setting('transaction_isolation') = 'read committed'
          for update skip locked
        );
      insert into hydrator.namespace_rates (namespace, writer, hour, written)
      values (v_new.namespace, pg_backend_pid(), v_hour, v_new.written);
    end if;

    select sum(r.written) into v_written
    from hydrator.namespace_rates r
    where r.namespace = v_new.namespace and r.hour = v_hour;
    if v_written > v_limit then
      raise exception 'namespace "%" would have % new memories in this hour, at most % are allowed',
          v_new.namespace, v_written, v_limit
        using errcode = 'MH012',
          hint = format('Write again after %s, or raise hydrator.max_memories_per_hour.', v_hour + interval '1 hour');
    end if;
  end loop;
  return null;
end
$function$;

comment on function hydrator.limit_rate() is
  'Trigger: refuses more new memories of a namespace in an hour than hydrator.max_memories_per_hour.';
revoke execute on function hydrator.limit_rate() from public;
