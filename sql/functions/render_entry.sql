-- An entry of the compact index as JSON, stored with the memory so that the index is put
-- together, not rendered, at each call. Reads nothing.
create function hydrator.render_entry(
  p_memory_id uuid,
  p_heading text,
  p_memory_type text,
  p_confidence real
)
returns json
language sql
immutable strict parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set extra_float_digits = 1
as $function$
  select ('{"memory_id":"' || p_memory_id || '","heading":' || to_json(p_heading)
    || ',"memory_type":"' || p_memory_type || '","confidence":' || p_confidence || '}')::json
$function$;

comment on function hydrator.render_entry(uuid, text, text, real) is
  'An entry of the compact index as JSON.';
revoke execute on function hydrator.render_entry(uuid, text, text, real) from public;
