-- How many live memories the namespaces hold, at the same cost for any number of them; see
-- survey_namespaces().
create function hydrator.count_live(p_namespaces text[])
returns bigint
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (hydrator.survey_namespaces(p_namespaces, null)).live_rows;
end
$function$;

comment on function hydrator.count_live(text[]) is
  'The number of live memories in the namespaces, at the same cost for any number.';
revoke execute on function hydrator.count_live(text[]) from public;
