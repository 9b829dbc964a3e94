-- The numbers that stand for words of a namespace in memories_words_idx, in the order given: a word
-- has another one in each namespace, so that its entries are one tenant's own. Level 0 is every
-- memory, above 0 a level of the sample: see word_keys(). Reads nothing.
create function hydrator.hash_words(p_namespace text, p_words text[], p_level integer)
returns bigint[]
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_seed constant bigint := hashtextextended(p_namespace collate "C", p_level);
begin
  -- Positive for words, negative for words of the sample.
  return array(
    select case when p_level = 0 then h.hash & 9223372036854775807 else h.hash | (-9223372036854775807 - 1) end
    from unnest(p_words) with ordinality w (word, ordinal)
    cross join lateral (select hashtextextended(w.word collate "C", v_seed) as hash) h
    order by w.ordinal
  );
end
$function$;

comment on function hydrator.hash_words(text, text[], integer) is
  'The numbers that stand for words of a namespace in memories_words_idx.';
revoke execute on function hydrator.hash_words(text, text[], integer) from public;
