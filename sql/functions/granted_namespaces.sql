-- The namespaces that the current role may read, or write: those that namespace_grants gives it
-- by name, and with a grant of null those that act_for() named. Where it named some, they narrow
-- the others too. Behind the row policies, which ask once a statement. Reads the role's grants.
--
-- Whatever the setting holds, it raises nothing: a policy is asked when the first row comes by,
-- so an error would tell that there was one.
create function hydrator.granted_namespaces(p_write boolean)
returns text[]
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  -- As act_for() wrote it: a comma between two, ~1 for a comma and ~0 for a tilde.
  v_setting constant text := nullif(current_setting('hydrator.namespaces', true), '');
  v_asked text[];
begin
  if v_setting is null then
    return array(
      select g.namespace
      from hydrator.namespace_grants g
      where g.role = current_user and g.namespace is not null and g.can_write >= p_write
    );
  end if;

  v_asked := string_to_array(v_setting, ',');
  if strpos(v_setting, '~') > 0 then
    v_asked := array(select replace(replace(a.name, '~1', ','), '~0', '~') from unnest(v_asked) a (name));
  end if;
  if exists (
    select
    from hydrator.namespace_grants g
    where g.role = current_user and g.namespace is null and g.can_write >= p_write
  ) then
    return v_asked;
  end if;
  return array(
    select g.namespace
    from hydrator.namespace_grants g
    where g.role = current_user and g.can_write >= p_write and g.namespace = any (v_asked collate "C")
  );
end
$function$;

comment on function hydrator.granted_namespaces(boolean) is
  'The namespaces the current role may read, or write, where row security is on.';
revoke execute on function hydrator.granted_namespaces(boolean) from public;
