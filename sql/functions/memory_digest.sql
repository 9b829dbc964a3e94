-- What tells two memories of a namespace apart: their heading and content. A heading has no line
-- break, so no two pairs run together. Reads nothing.
create function hydrator.memory_digest(p_heading text, p_content text)
returns uuid
language sql
immutable strict parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
  select encode(substr(sha256(convert_to(p_heading || E'\n' || p_content, 'UTF8')), 1, 16), 'hex')::uuid
$function$;

comment on function hydrator.memory_digest(text, text) is
  'A digest of heading and content, by which remember() knows a memory again.';
revoke execute on function hydrator.memory_digest(text, text) from public;
