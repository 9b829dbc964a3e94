-- Turns row security on, as a second wall behind the namespaces that a caller names, or off
-- again. Returns the statements that it ran, or with p_show would run. Safe to repeat; again
-- after an upgrade, it covers what is new. Raises MH011, with the statement that the role may
-- not run.
--
-- Members of the reader may read, and those of the writer also write, what namespace_grants
-- gives to each of them; the admin reads and writes everything. The policies bind the owner too,
-- but not superusers and roles with BYPASSRLS. Off, the three roles lose their rights here;
-- they and the grants stay.
create function hydrator.secure(
  p_on boolean default true,
  p_show boolean default false,
  p_reader text default 'hydrator_reader',
  p_writer text default 'hydrator_writer',
  p_admin text default 'hydrator_admin'
)
returns setof text
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  -- The namespaces as the keys of an object. The planner counts a subscript as free, so no condition
  -- of a query, however harmless it takes its operator for, is tried on a row before this one: what
  -- is tried first can be seen, by what it sets off.
  c_guard constant text := '((select jsonb_object(g, g) from hydrator.granted_namespaces(%s) g))[namespace] is not null';
  -- The same as a condition on an index, so that no scan of one passes over rows of others.
  c_search constant text := 'namespace = any ((select hydrator.granted_namespaces(%s))::text[] collate "C") and ' || c_guard;
  v_owner constant regrole := (select c.relowner from pg_class c where c.oid = 'hydrator.memories'::regclass);
  v_old_roles constant text[] := array(
    select distinct r.rolname
    from pg_policy p
    cross join unnest(p.polroles) m (role)
    join pg_class c on c.oid = p.polrelid
    join pg_roles r on r.oid = m.role
    where c.relnamespace = 'hydrator'::regnamespace and p.polname like 'hydrator\_%'
    order by 1
  );
  v_reads constant text := format(c_search, 'false', 'false');
  v_writes constant text := format(c_search, 'true', 'true');
  v_is_superuser constant boolean := (select r.rolsuper from pg_roles r where r.rolname = current_user);
  v_statements text[] := '{}';
  v_statement text;
  v_name text;
  v_table record;
begin
  if num_nulls(p_on, p_show, p_reader, p_writer, p_admin) > 0
    or p_reader = p_writer or p_writer = p_admin or p_admin = p_reader then
    raise exception 'reader, writer and admin are %, % and %',
        coalesce(quote_literal(p_reader), 'null'), coalesce(quote_literal(p_writer), 'null'),
        coalesce(quote_literal(p_admin), 'null')
      using errcode = 'MH011', hint = 'Name three different roles.';
  end if;
  if p_on and exists (
    select
    from pg_roles a
    join pg_roles r on r.rolname in (p_reader, p_writer) and pg_has_role(r.oid, a.oid, 'member')
    where a.rolname = p_admin
  ) then
    raise exception 'members of "%" are members of "%", which sees everything', p_writer, p_admin
      using errcode = 'MH011', hint = 'Name another admin, or revoke its membership.';
  end if;
  if not pg_has_role(v_owner, 'usage') then
    raise exception 'role "%" does not own the schema hydrator', current_user
      using errcode = 'MH011',
        hint = format('The owner, %s, or a superuser must run: select hydrator.secure();', v_owner);
  end if;

  -- What an earlier run made goes first, since its roles may have been others.
  v_statements := array(
    select format('drop policy %I on %s', p.polname, p.polrelid::regclass)
    from pg_policy p
    join pg_class c on c.oid = p.polrelid
    where c.relnamespace = 'hydrator'::regnamespace and p.polname like 'hydrator\_%'
    order by c.relname, p.polname
  );
  foreach v_name in array v_old_roles loop
    v_statements := v_statements || array[
      format('revoke all on all functions in schema hydrator from %I', v_name),
      format('revoke all on all tables in schema hydrator from %I', v_name),
      format('revoke all on schema hydrator from %I', v_name)
    ];
  end loop;

  if p_on then
    foreach v_name in array array[p_reader, p_writer, p_admin] loop
      if not exists (select from pg_roles r where r.rolname = v_name) then
        v_statements := v_statements || format('create role %I', v_name);
      end if;
    end loop;
    if not exists (
      select
      from pg_auth_members m
      join pg_roles r on r.oid = m.roleid and r.rolname = p_reader
      join pg_roles w on w.oid = m.member and w.rolname = p_writer
    ) then
      v_statements := v_statements || format('grant %I to %I', p_reader, p_writer);
    end if;

    v_statements := v_statements || array[
      format('grant usage on schema hydrator to %I, %I', p_reader, p_admin),
      format('grant select on all tables in schema hydrator to %I, %I', p_reader, p_admin),
      format('grant insert, update on hydrator.memories, hydrator.live_memories to %I, %I', p_writer, p_admin),
      format('grant insert, update, delete on hydrator.namespace_counts, hydrator.namespace_rates to %I, %I', p_writer, p_admin),
      format('grant insert, update, delete on hydrator.namespace_grants to %I', p_admin),
      format('grant delete on hydrator.memories to %I', p_admin)
    ] || array(
      select format('grant execute on function %s to %I, %I', p.oid::regprocedure,
        case when p.provolatile <> 'v' or p.proname = 'act_for' then p_reader else p_writer end, p_admin)
      from pg_proc p
      where p.pronamespace = 'hydrator'::regnamespace
        and p.prorettype <> 'trigger'::regtype
        and p.proname not in ('purge', 'secure', 'tell_plans')
      order by p.proname
    ) || format('grant execute on function hydrator.purge(interval) to %I', p_admin);
  end if;

  for v_table in
    select
      c.oid::regclass as name, c.relname, c.relrowsecurity as is_secured,
      string_agg(format('alter column %I set statistics %s', a.attname, case when p_on then 0 else -1 end), ', '
        order by a.attnum) as statistics
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relnamespace = 'hydrator'::regnamespace
      and c.relkind in ('r', 'p')
      and exists (select from pg_attribute n where n.attrelid = c.oid and n.attname = 'namespace')
    group by c.oid
    order by c.relname
  loop
    if not p_on then
      if v_table.is_secured then
        v_statements := v_statements || array[
          format('alter table %s disable row level security, no force row level security', v_table.name),
          format('alter table %s %s', v_table.name, v_table.statistics)
        ];
      end if;
      continue;
    end if;

    if v_table.relname = 'namespace_grants' then
      v_statements := v_statements || format(
        'create policy hydrator_read on %s for select to %I'
        ' using (role = current_user and ((select jsonb_build_object(current_user, true)))[role] is not null)',
        v_table.name, p_reader);
    else
      v_statements := v_statements || array[
        format('create policy hydrator_read on %s for select to %I using (%s)', v_table.name, p_reader, v_reads),
        format('create policy hydrator_insert on %s for insert to %I with check (%s)',
          v_table.name, p_writer, format(c_guard, 'true')),
        format('create policy hydrator_update on %s for update to %I using (%s) with check (%s)',
          v_table.name, p_writer, v_writes, format(c_guard, 'true')),
        format('create policy hydrator_delete on %s for delete to %I using (%s)', v_table.name, p_writer, v_writes)
      ];
    end if;
    -- Estimates, which anyone may ask for, would tell which values others store: no statistics of them.
    v_statements := v_statements || array[
      format('create policy hydrator_admin on %s to %I using (true)', v_table.name, p_admin),
      format('alter table %s enable row level security, force row level security', v_table.name),
      format('alter table %s %s', v_table.name, v_table.statistics)
    ];
    if current_setting('server_version_num')::integer >= 180000 then
      v_statements := v_statements || format(
        'select pg_clear_attribute_stats(''hydrator'', %L, a.attname, false) from pg_attribute a'
        ' where a.attrelid = %L::regclass and a.attnum > 0 and not a.attisdropped', v_table.relname, v_table.name);
    elsif v_is_superuser then
      v_statements := v_statements || format('delete from pg_statistic where starelid = %L::regclass', v_table.name);
    elsif exists (select from pg_stats s where s.schemaname = 'hydrator' and s.tablename = v_table.relname) then
      raise warning 'statistics of % stay, and so in what EXPLAIN estimates', v_table.name
        using hint = format('A superuser should run: delete from pg_statistic where starelid = %L::regclass;', v_table.name);
    end if;
  end loop;

  foreach v_statement in array v_statements loop
    if not p_show then
      begin
        execute v_statement;
      exception
        when insufficient_privilege then
          raise exception 'role "%" may not run: %', current_user, v_statement
            using errcode = 'MH011', hint = format('A superuser must run it, or: select hydrator.secure(%s, false, %L, %L, %L);',
              p_on, p_reader, p_writer, p_admin);
      end;
    end if;
    return next v_statement;
  end loop;
end
$function$;

comment on function hydrator.secure(boolean, boolean, text, text, text) is
  'Turns row security on, or off again; returns the statements, and with p_show runs none of them.';
revoke execute on function hydrator.secure(boolean, boolean, text, text, text) from public;
