-- Refuses a set of namespaces that cannot be meant: null, nested, or with a null in it.
-- An empty set is well meant and matches nothing. Raises MH005. Reads nothing.
create function hydrator.check_namespaces(p_namespaces text[])
returns boolean
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  if p_namespaces is null then
    raise exception 'namespaces is null'
      using errcode = 'MH005',
        hint = 'Pass the namespaces the caller may read, as an array; an empty one returns nothing.';
  elsif array_ndims(p_namespaces) > 1 then
    raise exception 'namespaces has % dimensions: %', array_ndims(p_namespaces), left(p_namespaces::text, 80)
      using errcode = 'MH005',
        hint = 'Pass a plain array of namespaces.';
  elsif array_position(p_namespaces, null) is not null then
    raise exception 'namespaces holds a null: %', left(p_namespaces::text, 80)
      using errcode = 'MH005',
        hint = 'Leave out what is not known; every element is a namespace.';
  end if;
  return true;
end
$function$;

comment on function hydrator.check_namespaces(text[]) is
  'Raises MH005 where a set of namespaces is null, nested or holds a null.';
revoke execute on function hydrator.check_namespaces(text[]) from public;
