-- What a text costs, without a tokenizer: characters over four, rounded up, as the
-- field does. It understates code and CJK text; memories.token_count exists for those.
-- Null for null. Reads nothing.
create function hydrator.estimate_tokens(p_text text)
returns integer
language sql
immutable strict parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
  select (char_length(p_text) + 3) / 4
$function$;

comment on function hydrator.estimate_tokens(text) is
  'The estimated tokens of a text: its characters over four, rounded up.';
revoke execute on function hydrator.estimate_tokens(text) from public;
