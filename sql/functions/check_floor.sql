-- Refuses a floor (of similarity, of confidence) that is no number; null is none. p_name is the
-- parameter's name as its caller knows it. Raises MH003. Reads nothing.
create function hydrator.check_floor(p_name text, p_value double precision)
returns boolean
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  if p_value = 'NaN' then
    raise exception '% is NaN', p_name
      using errcode = 'MH003', hint = format('Leave %s null to take every memory.', p_name);
  end if;
  return true;
end
$function$;

comment on function hydrator.check_floor(text, double precision) is
  'Raises MH003 where a floor is NaN.';
revoke execute on function hydrator.check_floor(text, double precision) from public;
