-- The words of a memory as memories_words_idx holds them, ascending: one number an occurrence, a
-- hash of the namespace and the word, so that a word's entries are one tenant's own. A word of
-- the heading counts three times; where the content is the heading, each counts once. One memory
-- in 8, 64 and 512, by its id, has each of its words once more under a negative number, so that
-- how often a common word occurs is told from a sample: see rank_hybrid(). Reads nothing.
create function hydrator.word_keys(p_namespace text, p_memory_id uuid, p_heading text, p_content text)
returns bigint[]
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set jit = off
as $function$
declare
  v_sample constant bigint := uuid_hash_extended(p_memory_id, 0);
  v_levels constant integer := case when v_sample & 7 <> 0 then 0 when v_sample & 63 <> 0 then 1
    when v_sample & 511 <> 0 then 2 else 3 end;
  v_heading constant text[] := hydrator.split_words(p_heading);
  v_words constant text[] := case when p_content = p_heading collate "C" then v_heading
    else v_heading || v_heading || v_heading || hydrator.split_words(p_content) end;
  v_keys bigint[];
begin
  v_keys := hydrator.hash_words(p_namespace, v_words, 0);
  for v_level in 1 .. v_levels loop
    v_keys := v_keys || hydrator.hash_words(p_namespace, array(select distinct u.word from unnest(v_words) u (word)), v_level);
  end loop;
  return array(select u.key from unnest(v_keys) u (key) order by 1);
end
$function$;

comment on function hydrator.word_keys(text, uuid, text, text) is
  'A memory''s words as numbers, ascending, one element an occurrence; those of the heading count three times.';
revoke execute on function hydrator.word_keys(text, uuid, text, text) from public;
