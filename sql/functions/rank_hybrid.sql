-- The ranking by vector, by text or by both, as parallel arrays, best first; behind
-- fetch_top_k_relevant(), search_memories() and hydrate_session(). Without a text it is
-- rank_memories(). min(p_top_k, rankable live rows) are ranked: those with an embedding, where
-- there is a vector, and those that hold a word of the text. Raises MH002 where there is neither,
-- MH003 for a floor of similarity without a vector, and what rank_memories() raises.
--
-- BM25 scores by text (k1 1.2, b 0.75, 1,000 words taken for the usual length): each word of the
-- query, counted up to three times, brings ln((n + 1) / (d + 0.5)), where d of the namespaces' n
-- live memories hold it, times f * 2.2 / (f + 0.3 + 0.0009 * l), where the memory holds it f times
-- among its l words. A word of the heading counts as three, unless the heading is all there is, and
-- so does a name: see word_keys() and split_words().
--
-- The fusion: candidates are the 30 nearest by vector and the 30 that hold the rarest words (of
-- whose words the ln(…) sum highest), or p_top_k of each if that is more. For all of them the exact
-- distance and the exact BM25 are taken; similarity and BM25 (0 without a match) are each brought
-- to mean 0 and standard deviation 1 among the candidates, and the score is their sum, BM25 taken
-- one and a half times (what recalled most on LoCoMo's turns without loss on its observations, see
-- README); ties end at memory_id. A memory without an embedding counts as the least similar
-- candidate; a floor of similarity leaves it out. A rank is the place among the candidates by that
-- side alone. However the nearest were found (exact, bits, hnsw), what follows is the same.
--
-- What common words cost: how many memories hold a word is counted in the smallest sample in which
-- it is met 32 times (see word_keys()), or among all. Candidates come from the rarest words, as
-- long as those are in no more than 500 memories together; the other words only score. Without a
-- vector, or with fewer near memories than asked for, all words bring candidates if the rare ones
-- bring too few, and text alone takes 200. Of a longer query 64 words count: those met most often
-- in it, then the longest.
--
-- Reads what rank_memories() reads for 30, the rows in which the counted and the rare words are,
-- and the words and vectors of the candidates. Like there, plans are generic, and the planner is
-- left one plan a statement: the namespace is compared so that only memories_words_idx serves.
create function hydrator.rank_hybrid(
  p_query_embedding @extension_schema@.vector,
  p_query_text text,
  p_namespaces text[],
  p_top_k integer,
  p_memory_types text[],
  p_min_similarity double precision,
  p_metadata jsonb,
  p_embedding_model text,
  p_min_confidence double precision,
  p_source_types text[],
  p_skip_pinned boolean,
  out namespaces text[],
  out memory_ids uuid[],
  out scores double precision[],
  out distances double precision[],
  out vector_ranks integer[],
  out text_ranks integer[],
  out tokens integer[],
  out ranked_by text,
  out live_rows bigint,
  out has_pinned boolean
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_sort = off
as $function$
declare
  c_rare_rows constant integer := 500;
  v_query constant @extension_schema@.@vector_type@ := p_query_embedding::@extension_schema@.@vector_type@;
  v_namespaces text[] collate "C";
  v_limit integer;
  -- One element a word, rarest first.
  v_words text[];
  v_occurrences integer[];
  v_counts bigint[];
  v_sampled boolean[];
  v_weights double precision[];
  v_chosen integer := 0;
  v_rows bigint := 0;
  -- The words' numbers, one namespace after the other.
  v_keys bigint[];
  v_near_namespaces text[];
  v_near_ids uuid[];
  v_text_namespaces text[] := '{}';
  v_text_ids uuid[] := '{}';
  v_thorough boolean;
begin
  if p_query_text is null then
    select k.* into namespaces, memory_ids, distances, tokens, ranked_by, live_rows, has_pinned
    from hydrator.rank_memories(
      p_query_embedding, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, p_skip_pinned
    ) k;
    scores := array(select @similarity(u.distance)@ from unnest(distances) with ordinality u (distance, rank) order by u.rank);
    vector_ranks := array(select generate_series(1, cardinality(distances)));
    text_ranks := array_fill(null::integer, array[cardinality(distances)]);
    return;
  end if;

  perform hydrator.check_namespaces(p_namespaces);
  perform hydrator.check_count('top_k', p_top_k);
  if p_query_embedding is null then
    if p_min_similarity is not null then
      raise exception 'min_similarity is % without a query embedding', p_min_similarity
        using errcode = 'MH003', hint = 'A text alone gives no similarity: leave the floor null, or embed the query.';
    end if;
    perform hydrator.check_floor('min_confidence', p_min_confidence);
    select s.live_rows, s.has_pinned into live_rows, has_pinned
    from hydrator.survey_namespaces(p_namespaces, null) s;
    v_limit := greatest(200, p_top_k);
    v_thorough := true;
    ranked_by := 'text';
  else
    v_limit := greatest(30, p_top_k);
    select k.namespaces, k.memory_ids, cardinality(k.memory_ids) < v_limit and p_min_similarity is null,
      k.ranked_by || '+text', k.live_rows, k.has_pinned
    into v_near_namespaces, v_near_ids, v_thorough, ranked_by, live_rows, has_pinned
    from hydrator.rank_memories(
      p_query_embedding, p_namespaces, v_limit,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, p_skip_pinned
    ) k;
  end if;

  -- Those that hold something: each costs a number for each word.
  v_namespaces := array(
    select distinct u.namespace collate "C"
    from unnest(p_namespaces) u (namespace)
    where exists (select from hydrator.live_memories m where m.namespace = u.namespace collate "C")
  );
  select array_agg(w.word order by w.word), array_agg(w.occurrences order by w.word)
  into v_words, v_occurrences
  from (
    select u.word collate "C" as word, least(count(*), 3) as occurrences
    from unnest(hydrator.split_words(p_query_text)) u (word)
    group by 1
    order by 2 desc, char_length(u.word collate "C") desc, 1
    limit 64
  ) w;

  -- From the smallest sample that the namespaces have 64 memories in: a word's count holds where
  -- it was met 32 times.
  for v_level in reverse least(floor(ln(greatest(live_rows, 1) / 64.0) / ln(8)), 3)::integer .. 1 loop
    with word as (
      select k.ordinal, array_agg(k.key) as keys
      from unnest(v_namespaces) n (namespace)
      cross join lateral unnest(hydrator.hash_words(n.namespace, v_words, v_level), v_sampled)
        with ordinality k (key, sampled, ordinal)
      where k.sampled is not true
      group by k.ordinal
    ),
    counted as (
      select w.ordinal, c.number
      from word w
      cross join lateral (
        select count(*) as number
        from hydrator.live_memories m
        where m.words && w.keys
          and (m.namespace || '') = any (v_namespaces)
      ) c
    )
    select
      array_agg(coalesce(least(c.number * (8 ^ v_level)::bigint, live_rows), u.count) order by u.ordinal),
      array_agg(coalesce(c.number >= 32, true) order by u.ordinal)
    into v_counts, v_sampled
    from unnest(v_words, v_counts) with ordinality u (word, count, ordinal)
    left join counted c on c.ordinal = u.ordinal;
  end loop;

  select
    array_agg(u.word order by u.count nulls first, u.word),
    array_agg(u.occurrences order by u.count nulls first, u.word),
    array_agg(u.count order by u.count nulls first, u.word)
  into v_words, v_occurrences, v_counts
  from unnest(v_words, v_occurrences, v_counts) u (word, occurrences, count);

  if v_words is not null then
    v_keys := array(
      select k.key
      from unnest(v_namespaces) with ordinality n (namespace, ordinal)
      cross join lateral unnest(hydrator.hash_words(n.namespace, v_words, 0)) with ordinality k (key, ordinal)
      order by n.ordinal, k.ordinal
    );
    loop
      while v_chosen < cardinality(v_words) and v_rows + coalesce(v_counts[v_chosen + 1], 0) <= c_rare_rows loop
        v_chosen := v_chosen + 1;
        v_rows := v_rows + coalesce(v_counts[v_chosen], 0);
      end loop;
      if v_chosen = 0 and v_thorough then
        v_chosen := cardinality(v_words);
      end if;

      with held as materialized (
        select w.ordinal, m.namespace, m.memory_id, m.passes
        from (
          select (u.ordinal - 1) % cardinality(v_words) + 1 as ordinal, array_agg(u.key) as keys
          from unnest(v_keys) with ordinality u (key, ordinal)
          where (u.ordinal - 1) % cardinality(v_words) < v_chosen
          group by 1
        ) w
        cross join lateral (
          select
            l.namespace, l.memory_id,
            (p_memory_types is null or l.memory_type = any (p_memory_types collate "C"))
              and (p_metadata is null or l.metadata @> p_metadata)
              and (p_min_confidence is null or l.confidence >= p_min_confidence::real)
              and (p_source_types is null or l.source_type = any (p_source_types))
              and not (p_skip_pinned and l.pinned)
              and (p_min_similarity is null or coalesce(hydrator.similarity(
                l.embedding operator(@extension_schema@.@distance_operator@) v_query
              )::real >= p_min_similarity::real, false)) as passes
          from hydrator.live_memories l
          where l.words && w.keys
            and (l.namespace || '') = any (v_namespaces)
        ) m
      ),
      word as (
        select u.ordinal, u.occurrences, coalesce(h.count, case when u.ordinal <= v_chosen then 0 else u.count end) as count
        from unnest(v_counts, v_occurrences) with ordinality u (count, occurrences, ordinal)
        left join (select x.ordinal, count(*) as count from held x group by x.ordinal) h on h.ordinal = u.ordinal
      ),
      weighed as (
        select w.ordinal, case when w.count > 0 then w.occurrences * ln((live_rows + 1) / (least(w.count, live_rows) + 0.5)::double precision) end as weight
        from word w
      ),
      best as (
        select h.namespace, h.memory_id
        from held h
        join weighed w on w.ordinal = h.ordinal
        where h.passes
        group by h.namespace, h.memory_id
        order by floor(sum(w.weight) * 1e9 + 0.5) desc, h.memory_id, h.namespace
        limit v_limit
      )
      select
        (select array_agg(w.weight order by w.ordinal) from weighed w),
        coalesce(array_agg(b.namespace), '{}'), coalesce(array_agg(b.memory_id), '{}')
      into v_weights, v_text_namespaces, v_text_ids
      from best b;

      exit when not v_thorough or cardinality(v_text_ids) >= p_top_k or v_chosen = cardinality(v_words);
      v_chosen := cardinality(v_words);
    end loop;
  end if;

  with candidate as (
    select u.namespace, u.memory_id from unnest(v_near_namespaces, v_near_ids) u (namespace, memory_id)
    union
    select u.namespace, u.memory_id from unnest(v_text_namespaces, v_text_ids) u (namespace, memory_id)
  ),
  memory as materialized (
    select
      m.namespace, m.memory_id, m.content_tokens, m.words || '{}' as words,
      (m.embedding operator(@extension_schema@.@distance_operator@) v_query) + 0 as distance
    from candidate c
    join hydrator.memories m on m.namespace = c.namespace and m.memory_id = c.memory_id
  ),
  scored as (
    select
      m.namespace, m.memory_id, m.content_tokens, m.distance,
      @similarity(m.distance)@ as similarity,
      floor(b.bm25 * 1e9 + 0.5) / 1e9 as bm25
    from memory m
    cross join lateral (
      select sum(f.weight * f.frequency * 2.2 / (f.frequency + f.norm)) as bm25
      from (
        select
          w.weight, width_bucket(w.key, m.words) - width_bucket(w.key - 1, m.words) as frequency,
          0.3 + 0.0009 * (cardinality(m.words) - width_bucket(-1, m.words)) as norm
        from unnest(
          case when cardinality(v_namespaces) = 1 then v_keys
            else v_keys[(array_position(v_namespaces, m.namespace) - 1) * cardinality(v_words) + 1 :] end,
          v_weights
        ) w (key, weight)
        where w.weight is not null
      ) f
      where f.frequency > 0
    ) b
  ),
  filled as (
    select
      s.*, coalesce(s.bm25, 0) as by_text,
      coalesce(s.similarity, min(s.similarity) over (), 0) as by_vector
    from scored s
    order by s.memory_id, s.namespace
  ),
  spread as materialized (
    -- Equal numbers have a deviation of rounding errors.
    select
      avg(f.by_text) as text_mean, avg(f.by_vector) as vector_mean,
      case when stddev_pop(f.by_text) > 1e-9 * max(abs(f.by_text)) then stddev_pop(f.by_text) end as text_deviation,
      case when stddev_pop(f.by_vector) > 1e-9 * max(abs(f.by_vector)) then stddev_pop(f.by_vector) end as vector_deviation
    from filled f
  ),
  ranked as (
    select
      f.namespace, f.memory_id, f.content_tokens, f.distance,
      case when p_query_embedding is null then f.bm25 else floor((
        1.5 * coalesce((f.by_text - s.text_mean) / s.text_deviation, 0)
        + coalesce((f.by_vector - s.vector_mean) / s.vector_deviation, 0)
      ) * 1e9 + 0.5) / 1e9 end as score,
      case when f.distance is not null then rank() over (order by f.distance) end as vector_rank,
      case when f.bm25 is not null then rank() over (order by f.by_text desc) end as text_rank
    from filled f
    cross join spread s
    order by 5 desc nulls last, f.memory_id, f.namespace
    limit p_top_k
  )
  select
    coalesce(array_agg(r.namespace), '{}'), coalesce(array_agg(r.memory_id), '{}'),
    coalesce(array_agg(r.score), '{}'), coalesce(array_agg(r.distance), '{}'),
    coalesce(array_agg(r.vector_rank), '{}'), coalesce(array_agg(r.text_rank), '{}'),
    coalesce(array_agg(r.content_tokens), '{}')
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks, tokens
  from ranked r;
end
$function$;

comment on function hydrator.rank_hybrid(
  @extension_schema@.vector, text, text[], integer, text[], double precision, jsonb, text,
  double precision, text[], boolean
) is 'The live memories most relevant to a query by vector, text or both, best first: parallel arrays, how they were ranked, and what the survey found.';
revoke execute on function hydrator.rank_hybrid(
  @extension_schema@.vector, text, text[], integer, text[], double precision, jsonb, text,
  double precision, text[], boolean
) from public;
