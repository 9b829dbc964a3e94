-- Until the transaction ends, the plans of all statements, also of those inside the calls, are
-- told to this session as notices, as `explain (analyze, buffers)` writes them:
--
--   begin;
--   select hydrator.tell_plans();
--   select * from hydrator.hydrate_session(…);
--   rollback;
--
-- For the DBA who asks why a call took what it took; `explain` shows it as one function scan.
-- Raises insufficient_privilege (42501) for a role that may neither load auto_explain nor set its
-- parameters; the hint says how a superuser lets it. Reads nothing.
create function hydrator.tell_plans()
returns void
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  -- As notices, they go to this session, and not into the server's log. The last one is the
  -- switch: from there on, statements are told.
  v_parameters constant text[] := array[
    'log_level', 'log_format', 'log_nested_statements', 'log_analyze', 'log_buffers', 'log_timing',
    'log_verbose', 'log_triggers', 'sample_rate', 'log_min_duration'
  ];
  v_values constant text[] := array['notice', 'text', 'on', 'on', 'on', 'on', 'off', 'off', '1', '0'];
begin
  if current_setting('auto_explain.log_nested_statements', true) is null then
    load 'auto_explain';
  end if;
  perform set_config('client_min_messages', 'notice', true);
  for i in 1 .. cardinality(v_parameters) loop
    perform set_config('auto_explain.' || v_parameters[i], v_values[i], true);
  end loop;
exception
  when insufficient_privilege or undefined_file then
    raise exception 'the plans cannot be told: %', sqlerrm
      using errcode = sqlstate,
        hint = format(
          'Ask as a superuser, or have one run, for this role''s next sessions: '
          'alter role %1$I set session_preload_libraries = ''auto_explain''; '
          'grant set on parameter auto_explain.%2$s to %1$I;',
          current_user, array_to_string(v_parameters, ', auto_explain.')
        );
end
$function$;

comment on function hydrator.tell_plans() is
  'Until the transaction ends, tells the plans of all statements, also inside the calls, as notices.';
revoke execute on function hydrator.tell_plans() from public;
