-- Names the namespaces on whose behalf the rest of the transaction reads and writes, where row
-- security is on: all that a role with a grant of null may see, and a narrower choice for one
-- with grants by name. Never more than it was granted. Raises MH005. Reads nothing.
create function hydrator.act_for(p_namespaces text[])
returns void
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  perform hydrator.check_namespaces(p_namespaces);
  -- An empty set is a setting too, of a name that no namespace has.
  perform set_config('hydrator.namespaces', coalesce(nullif(array_to_string(array(
    select replace(replace(n.namespace, '~', '~0'), ',', '~1') from unnest(p_namespaces) n (namespace)
  ), ','), ''), ','), true);
end
$function$;

comment on function hydrator.act_for(text[]) is
  'Narrows row security to these namespaces until the transaction ends.';
revoke execute on function hydrator.act_for(text[]) from public;
