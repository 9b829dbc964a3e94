-- The words of a text, one element an occurrence: of a memory and of a query alike, so that the
-- one finds the other. Reads nothing; the first 100,000 characters count.
--
-- A name, which is written like code (a path, a flag, an identifier, a version, an address,
-- camelCase, snake_case), gives itself whole and in parts: src/rank_memories.sql gives
-- src/rank_memories.sql, rank_memories.sql and rank_memories, each three times, since names are
-- what memories are about (their first 255 characters); and like any text src, rank, memories,
-- sql. These and all plain words go through the text search configuration, which stems them and
-- leaves out stop words. Chinese, Japanese and Korean writing, which has no spaces or many endings,
-- gives each two neighbours.
create function hydrator.split_words(p_text text)
returns text[]
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set jit = off
as $function$
declare
  c_cjk constant text := '[\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3130-\u318f'
    '\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc'
    '\U00020000-\U0003ffff]+';
  c_code constant text := '[A-Za-z0-9]+(?:[._/:@#+=~-]+[A-Za-z0-9]+)+|[A-Za-z0-9]*[a-z0-9][A-Z][A-Za-z0-9]*';
  -- In "C", so that letters and their cases are the same in every database.
  v_text text collate "C" := left(p_text, 100000);
  v_plain text collate "C" := v_text;
  v_words text[] := '{}';
  v_vector tsvector;
begin
  if v_text ~ c_code then
    with code as (
      select left(f.found[1], 255) as word
      from regexp_matches(v_text, c_code, 'g') f (found)
    ),
    name as (
      select s.word, c.word as within
      from code c
      cross join lateral regexp_split_to_table(c.word, '[/:@#+=~]+') s (word)
    ),
    part as (
      select s.word, n.word as within
      from name n
      cross join lateral regexp_split_to_table(n.word, '[.]+') s (word)
    )
    select array_agg(lower(w.word collate "C")) into v_words
    from (
      select c.word from code c
      union all
      select n.word from name n where n.word <> n.within and n.word ~ c_code
      union all
      select p.word from part p where p.word <> p.within and p.word ~ c_code
    ) w
    cross join generate_series(1, 3);
    v_plain := regexp_replace(v_text, '([a-z0-9])([A-Z])', '\1 \2', 'g');
    v_plain := regexp_replace(v_plain, '([A-Z])([A-Z][a-z])', '\1 \2', 'g');
  end if;

  if octet_length(v_text) > char_length(v_text) and v_text ~ c_cjk then
    select v_words || array_agg(p.pair) into v_words
    from regexp_matches(v_text, c_cjk, 'g') f (found)
    cross join lateral (
      select c.letter || lead(c.letter, 1, '') over (order by c.ordinality) as pair, c.ordinality
      -- One by one: substr() would count from the start each time.
      from string_to_table(f.found[1], null) with ordinality c (letter, ordinality)
    ) p
    where p.ordinality = 1 or char_length(p.pair) = 2;
    v_plain := regexp_replace(v_plain, c_cjk, ' ', 'g');
  end if;

  -- Without what the parser would take for a path, a host, a number with a sign or a tag.
  v_vector := to_tsvector(@text_search_config@::regconfig,
    regexp_replace(v_plain, '[./:@#+=~_<>&\\%-]+', ' ', 'g'));
  select v_words || coalesce(array_agg(l.lexeme), '{}') into v_words
  from (
    select u.lexeme from unnest(v_vector) u
    union all
    select u.lexeme
    from unnest(v_vector) u
    cross join lateral generate_series(2, cardinality(u.positions))
    where cardinality(u.positions) > 1
  ) l;
  return v_words;
end
$function$;

comment on function hydrator.split_words(text) is
  'The words by which a text is found, one element an occurrence.';
revoke execute on function hydrator.split_words(text) from public;
