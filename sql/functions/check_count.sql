-- Refuses a count or a budget that is null or negative; p_name is the parameter's
-- name as its caller knows it. Raises MH003. Reads nothing.
create function hydrator.check_count(p_name text, p_value integer)
returns boolean
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  if p_value is null or p_value < 0 then
    raise exception '% is %', p_name, coalesce(p_value::text, 'null')
      using errcode = 'MH003',
        hint = format('%s is a whole number, 0 or more.', p_name);
  end if;
  return true;
end
$function$;

comment on function hydrator.check_count(text, integer) is
  'Raises MH003 where a count or a budget is null or negative.';
revoke execute on function hydrator.check_count(text, integer) from public;
