-- Made by tests/migrations/freeze.py from sql/tables and sql/functions.

-- tables/installed.sql
-- What was settled when the schema was installed: one row, read through
-- hydrator.installation(). The functions carry the same values in their bodies,
-- because a search path or a look-up at call time could be turned against them.
create table hydrator.installed (
  singleton boolean primary key default true check (singleton),
  dimensions integer not null,
  vector_type text not null,
  distance text not null,
  extension_schema text not null,
  text_search_config text not null,
  extension_created boolean not null
);

comment on table hydrator.installed is
  'One row: the settings this installation was made with. Changing it changes nothing; see hydrator.installation().';

do $install$
declare
  v_version text;
  v_schema regnamespace;
  v_created boolean := false;
begin
  if current_setting('server_version_num')::integer < 150000 then
    raise exception 'hydrator needs PostgreSQL 15 or later, this server is %', current_setting('server_version')
      using errcode = 'MH011';
  end if;
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception 'hydrator needs a database encoded in UTF8, this one is %', current_setting('server_encoding')
      using errcode = 'MH011',
        hint = 'create database … encoding ''UTF8'' template template0;';
  end if;

  if not exists (select from pg_catalog.pg_extension where extname = 'vector') then
    if to_regnamespace($q$@extension_schema@$q$) is null then
      raise exception 'there is no schema "%" for the extension pgvector', @extension_schema_name@
        using errcode = 'MH011', hint = format('Run first: create schema %I;', @extension_schema_name@::text);
    end if;
    begin
      create extension vector with schema @extension_schema@;
      v_created := true;
    exception
      when insufficient_privilege then
        raise exception 'the extension pgvector is not in database "%", and role "%" may not create it',
            current_database(), current_user
          using errcode = 'MH011',
            hint = format('A superuser must run, in database %I: create extension vector with schema %I;',
              current_database(), @extension_schema_name@::text);
      when undefined_file or feature_not_supported then
        raise exception 'the extension pgvector is not installed on this server'
          using errcode = 'MH011',
            hint = format('Install pgvector 0.7 or later on the server''s machine, then a superuser must run, in database %I: create extension vector with schema %I;',
              current_database(), @extension_schema_name@::text);
    end;
  end if;

  select e.extversion, e.extnamespace
  into v_version, v_schema
  from pg_catalog.pg_extension e
  where e.extname = 'vector';

  if v_schema is distinct from to_regnamespace($q$@extension_schema@$q$) then
    raise exception 'the extension vector lives in schema %, not in %', v_schema, $q$@extension_schema@$q$
      using errcode = 'MH011',
        hint = format('Install with the extension schema %s.', v_schema);
  end if;
  if string_to_array(regexp_replace(v_version, '[^0-9.].*$', ''), '.')::integer[] < array[0, 7] then
    raise exception 'hydrator needs pgvector 0.7 or later, this database has %', v_version
      using errcode = 'MH011',
        hint = 'Its owner must run: alter extension vector update;';
  end if;

  begin
    perform @text_search_config@::regconfig;
  exception
    when undefined_object or invalid_schema_name or syntax_error or invalid_name then
      raise exception 'there is no text search configuration %', @text_search_config@
        using errcode = 'MH011',
          hint = 'select cfgname from pg_ts_config; one outside pg_catalog is named with its schema.';
  end;

  insert into hydrator.installed (
    dimensions, vector_type, distance, extension_schema, text_search_config, extension_created
  )
  select @dimensions@, '@vector_type@', '@distance@', n.nspname, @text_search_config@, v_created
  from pg_catalog.pg_namespace n
  where n.oid = v_schema;
end
$install$;

-- tables/namespace_counts.sql
-- How many memories of a namespace are not deleted and never expire, so that a count costs the
-- same at any size. A row for each backend that has written, so that writers never wait for
-- one another; a sum over them is the count, in whatever snapshot it is read.
create table hydrator.namespace_counts (
  namespace text collate "C" not null,
  writer integer not null,
  lasting bigint not null,
  constraint namespace_counts_pkey primary key (namespace, writer)
)
-- Rows are updated in place, again and again.
with (fillfactor = 50);

comment on table hydrator.namespace_counts is
  'Counts of the memories that never expire, kept by triggers; read through hydrator.count_live().';
comment on column hydrator.namespace_counts.writer is 'The process id of the backend that counted.';

-- tables/namespace_grants.sql
-- Which database role may read, and write, which namespaces, once hydrator.secure() has turned
-- row security on. A grant is of the role itself, not of the roles that are members of it.
create table hydrator.namespace_grants (
  role text collate "C" not null,
  namespace text collate "C",
  can_write boolean not null default false,
  constraint namespace_grants_key unique nulls not distinct (role, namespace)
);

comment on table hydrator.namespace_grants is
  'Which role may read and write which namespaces, once hydrator.secure() has turned row security on.';
comment on column hydrator.namespace_grants.role is 'The role, as current_user names it.';
comment on column hydrator.namespace_grants.namespace is
  'A namespace it may read; null: those that its transaction names by hydrator.act_for(), and none before.';
comment on column hydrator.namespace_grants.can_write is 'Whether it may write there too.';

-- tables/namespace_rates.sql
-- How many memories each backend wrote into a namespace in the current hour: kept only where the
-- setting hydrator.max_memories_per_hour asks for it. A row a backend, so that none waits.
create table hydrator.namespace_rates (
  namespace text collate "C" not null,
  writer integer not null,
  hour timestamptz not null,
  written bigint not null,
  constraint namespace_rates_pkey primary key (namespace, writer)
)
with (fillfactor = 50);

comment on table hydrator.namespace_rates is
  'Memories written in the current hour, where hydrator.max_memories_per_hour is set; kept by a trigger.';
comment on column hydrator.namespace_rates.writer is 'The process id of the backend that wrote.';

-- functions/act_for.sql
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

-- functions/check_count.sql
-- Refuses a count or a budget that is null or negative; p_name is the parameter's
-- name as its caller knows it. Raises MH003. Reads nothing.
create function hydrator.check_count(p_name text, p_value integer)
returns boolean
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  if p_value is null or p_value < 0 then
    raise exception '% is %', p_name, coalesce(p_value::text, 'null')
      using errcode = 'MH003',
        hint = format('%s is a whole number, 0 or more.', p_name);
  end if;
  return true;
end
$function$;

comment on function hydrator.check_count(text, integer) is
  'Raises MH003 where a count or a budget is null or negative.';
revoke execute on function hydrator.check_count(text, integer) from public;

-- functions/check_embedding.sql
-- Gives a vector in the type that is stored here, and refuses one that this installation cannot
-- rank: null (MH002), of another dimension (MH001), or of a length at which float4 arithmetic
-- gives NaN or infinity instead of a distance (MH002): zero, below 1e-18 or above 1e18. p_name
-- says which vector it is. Reads nothing.
create function hydrator.check_embedding(p_name text, p_embedding @extension_schema@.vector)
returns @extension_schema@.@vector_type@
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_stored constant @extension_schema@.@vector_type@ :=
    case when @extension_schema@.vector_dims(p_embedding) = @dimensions@ then p_embedding::@extension_schema@.@vector_type@ end;
  v_square constant double precision := -(v_stored operator(@extension_schema@.<#>) v_stored);
begin
  if v_square between 1e-36 and 1e36 then
    return v_stored;
  end if;

  if p_embedding is null then
    raise exception '% is null', p_name
      using errcode = 'MH002',
        hint = 'Embed the text first; memories without an embedding stay in the index and are never ranked.';
  elsif @extension_schema@.vector_dims(p_embedding) <> @dimensions@ then
    raise exception '% has % dimensions, this installation holds %',
        p_name, @extension_schema@.vector_dims(p_embedding), @dimensions@
      using errcode = 'MH001',
        hint = 'Embed with the model the memories were embedded with; hydrator.installation() tells the dimensions.';
  elsif v_square = 0 then
    raise exception '% is a zero vector', p_name
      using errcode = 'MH002',
        hint = 'A zero vector has no direction and no distance; models give one for empty text.';
  end if;
  raise exception '% has the length %, outside 1e-18 to 1e18', p_name, sqrt(v_square)
    using errcode = 'MH002',
      hint = 'Scale the vector; at such lengths its distances overflow.';
end
$function$;

comment on function hydrator.check_embedding(text, @extension_schema@.vector) is
  'A vector in the stored type; raises MH001 or MH002 where it cannot be ranked here: wrong dimension, null, zero, out of range.';
revoke execute on function hydrator.check_embedding(text, @extension_schema@.vector) from public;

-- functions/check_embedding_model.sql
-- Refuses to compare vectors of two models: where the live vectors of the namespaces were
-- made by another model than p_embedding_model, or (null: the query says nothing of its
-- model) by two models. Stored vectors without a model pass. Raises MH009. Reads the first
-- and the last entry of each namespace in memories_rankable_idx.
create function hydrator.check_embedding_model(p_embedding_model text, p_namespaces text[])
returns void
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_sort = off
as $function$
declare
  v_edge record;
  -- Of the column's collation; a variable would have the caller's.
  v_model text collate "C" := p_embedding_model;
begin
  for v_edge in
    select n.namespace, lowest.embedding_model as lowest, highest.embedding_model as highest
    from unnest(p_namespaces) n (namespace)
    cross join lateral (
      select m.embedding_model
      from hydrator.live_memories m
      where m.namespace = n.namespace collate "C"
        and m.embedding is not null
        and m.embedding_model is not null
      order by m.embedding_model
      limit 1
    ) lowest
    cross join lateral (
      select m.embedding_model
      from hydrator.live_memories m
      where m.namespace = n.namespace collate "C"
        and m.embedding is not null
        and m.embedding_model is not null
      order by m.embedding_model desc
      limit 1
    ) highest
  loop
    v_model := coalesce(v_model, v_edge.lowest);
    continue when v_edge.lowest = v_model and v_edge.highest = v_model;
    raise exception 'namespace "%" holds vectors of the model "%", and % of "%"',
        v_edge.namespace,
        case when v_edge.lowest = v_model then v_edge.highest else v_edge.lowest end,
        case when p_embedding_model is null then 'there are others' else 'this one is' end, v_model
      using errcode = 'MH009',
        hint = 'Vectors of two models cannot be compared: embed with the stored model, or embed the namespace anew.';
  end loop;
end
$function$;

comment on function hydrator.check_embedding_model(text, text[]) is
  'Raises MH009 where live vectors of the namespaces were made by another model, or by two.';
revoke execute on function hydrator.check_embedding_model(text, text[]) from public;

-- functions/check_floor.sql
-- Refuses a floor (of similarity, of confidence) that is no number; null is none. p_name is the
-- parameter's name as its caller knows it. Raises MH003. Reads nothing.
create function hydrator.check_floor(p_name text, p_value double precision)
returns boolean
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  if p_value = 'NaN' then
    raise exception '% is NaN', p_name
      using errcode = 'MH003', hint = format('Leave %s null to take every memory.', p_name);
  end if;
  return true;
end
$function$;

comment on function hydrator.check_floor(text, double precision) is
  'Raises MH003 where a floor is NaN.';
revoke execute on function hydrator.check_floor(text, double precision) from public;

-- functions/check_namespaces.sql
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

-- functions/choose_ranking.sql
-- Which way a ranking over so many live rows is made: exact, bits (a candidate scan over the
-- signs of the embeddings in memories_bits_idx, then exact distances) or hnsw (an iterative
-- scan of memories_hnsw_idx). Small sets are ranked exactly; larger ones by what indexes there
-- are, HNSW only where the rows are a fair share of the table, since it filters last. Filters
-- on metadata, confidence and source are not in the bits index. Reads the catalog.
create function hydrator.choose_ranking(p_live_rows bigint, p_by_metadata boolean default false)
returns text
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_bits boolean;
  v_hnsw boolean;
  v_table_rows real;
begin
  if p_live_rows <= hydrator.setting('exact_max_rows') then
    return 'exact';
  end if;

  select
    bool_or(i.indexrelid = to_regclass('hydrator.memories_bits_idx')) and not p_by_metadata,
    bool_or(i.indexrelid = to_regclass('hydrator.memories_hnsw_idx'))
  into v_bits, v_hnsw
  from pg_index i
  where i.indexrelid in (to_regclass('hydrator.memories_bits_idx'), to_regclass('hydrator.memories_hnsw_idx'))
    and i.indisvalid;

  if v_bits and p_live_rows <= hydrator.setting('bits_max_rows') then
    return 'bits';
  end if;
  if v_hnsw then
    select c.reltuples into v_table_rows from pg_class c where c.oid = 'hydrator.memories'::regclass;
    if p_live_rows * 100.0 >= v_table_rows * hydrator.setting('hnsw_min_percent') then
      return 'hnsw';
    end if;
  end if;
  return case when v_bits then 'bits' else 'exact' end;
end
$function$;

comment on function hydrator.choose_ranking(bigint, boolean) is
  'The way a ranking over so many live rows is made: exact, bits or hnsw.';
revoke execute on function hydrator.choose_ranking(bigint, boolean) from public;

-- functions/compact_index.sql
-- Tier 1: what the agent knows, one line a live memory and nothing of the content. Best
-- confidence first, ties by memory_id. With a budget in tokens, the longest leading run
-- that fits. Raises MH003 for a negative budget and MH005 for null namespaces. Reads the
-- live rows of the namespaces.
create function hydrator.compact_index(p_namespaces text[], p_token_budget integer default null)
returns table (
  memory_id uuid,
  heading text,
  memory_type text,
  confidence real
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  if p_token_budget is not null then
    perform hydrator.check_count('token_budget', p_token_budget);
  end if;

  return query
  select e.memory_id, e.heading, e.memory_type, e.confidence
  from hydrator.index_json(p_namespaces, p_token_budget) i
  cross join lateral json_to_recordset(i.index)
    as e (memory_id uuid, heading text, memory_type text, confidence real);
end
$function$;

comment on function hydrator.compact_index(text[], integer) is
  'Tier 1: heading, type and confidence of every live memory, best confidence first; with a budget, what fits.';
revoke execute on function hydrator.compact_index(text[], integer) from public;

-- functions/count_live.sql
-- How many live memories the namespaces hold, at the same cost for any number of them; see
-- survey_namespaces().
create function hydrator.count_live(p_namespaces text[])
returns bigint
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (hydrator.survey_namespaces(p_namespaces, null)).live_rows;
end
$function$;

comment on function hydrator.count_live(text[]) is
  'The number of live memories in the namespaces, at the same cost for any number.';
revoke execute on function hydrator.count_live(text[]) from public;

-- functions/count_memories.sql
-- Keeps namespace_counts, a statement at a time. A backend's first write to a namespace also
-- takes over the rows of backends that have ended. Writes a row for each namespace.
create function hydrator.count_memories()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_change record;
begin
  if tg_op = 'TRUNCATE' then
    delete from hydrator.namespace_counts;
    return null;
  end if;

  -- A trigger has the transition tables of its event alone, so each event asks for its own.
  for v_change in execute
    'select c.namespace, sum(c.change) as change from ('
    || case when tg_op <> 'DELETE' then
      'select namespace, 1 as change from new_rows where deleted_at is null and expires_at is null' else '' end
    || case when tg_op = 'UPDATE' then ' union all ' else '' end
    || case when tg_op <> 'INSERT' then
      'select namespace, -1 from old_rows where deleted_at is null and expires_at is null' else '' end
    || ') c (namespace, change) group by c.namespace having sum(c.change) <> 0 order by c.namespace'
  loop
    update hydrator.namespace_counts c
    set lasting = c.lasting + v_change.change
    where c.namespace = v_change.namespace and c.writer = pg_backend_pid();
    continue when found;

    with swept as (
      delete from hydrator.namespace_counts c
      where c.namespace = v_change.namespace
        and c.writer in (
          select o.writer
          from hydrator.namespace_counts o
          where o.namespace = v_change.namespace
            and not exists (select from pg_stat_get_activity(null) a where a.pid = o.writer)
            -- At a stricter level, a row that another backend has taken over would be an error.
            and current_setting('transaction_isolation') = 'read committed'
          for update skip locked
        )
      returning c.lasting
    )
    insert into hydrator.namespace_counts as c (namespace, writer, lasting)
    select v_change.namespace, pg_backend_pid(), v_change.change + coalesce(sum(s.lasting), 0)
    from swept s
    on conflict (namespace, writer) do update set lasting = c.lasting + excluded.lasting;
  end loop;
  return null;
end
$function$;

comment on function hydrator.count_memories() is
  'Trigger: keeps the counts of lasting memories by namespace.';
revoke execute on function hydrator.count_memories() from public;

-- functions/estimate_tokens.sql
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

-- functions/fetch_memories.sql
-- Progressive disclosure, second step: full live memories by id, in the order asked for
-- (an id asked for twice comes once). Ids that are not there, not live or not in the
-- namespaces are absent, without a difference between the three. Raises MH005 for null
-- namespaces and MH010 for null ids. Reads one row an id and namespace.
create function hydrator.fetch_memories(p_namespaces text[], p_memory_ids uuid[])
returns table (
  memory_id uuid,
  namespace text,
  memory_type text,
  heading text,
  content text,
  confidence real,
  source_type text,
  supersedes uuid,
  expires_at timestamptz,
  created_at timestamptz,
  updated_at timestamptz,
  pinned boolean,
  metadata jsonb,
  embedding_model text,
  tokens integer
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
begin
  perform hydrator.check_namespaces(p_namespaces);
  if p_memory_ids is null then
    raise exception 'memory_ids is null'
      using errcode = 'MH010', hint = 'Pass the ids to fetch as an array; an empty one returns nothing.';
  end if;

  return query
  with asked as (
    select a.memory_id, min(a.ordinal) as ordinal
    from unnest(p_memory_ids) with ordinality a (memory_id, ordinal)
    group by a.memory_id
  )
  select
    m.memory_id, m.namespace, m.memory_type, m.heading, m.content, m.confidence, m.source_type,
    m.supersedes, m.expires_at, m.created_at, m.updated_at, m.pinned, m.metadata,
    m.embedding_model, m.content_tokens
  from asked
  join hydrator.live_memories m on m.memory_id = asked.memory_id
  where m.namespace = any (p_namespaces collate "C")
  order by asked.ordinal, m.namespace;
end
$function$;

comment on function hydrator.fetch_memories(text[], uuid[]) is
  'Full live memories by id, in the order asked for; what is absent, dead or elsewhere is left out.';
revoke execute on function hydrator.fetch_memories(text[], uuid[]) from public;

-- functions/fetch_top_k_relevant.sql
-- Tier 2 alone: the p_top_k live memories most relevant to the query, in full, best first, ties
-- by memory_id: by the query's vector, its text or both, see rank_hybrid(); where one of the last
-- four parameters is given, see rerank_memories(). The filters narrow what is ranked;
-- p_embedding_model names the query's model and is held against the stored ones. Raises what these
-- raise. Reads the vectors of the namespaces' live rows and p_top_k contents.
create function hydrator.fetch_top_k_relevant(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_top_k integer default 5,
  p_memory_types text[] default null,
  p_min_similarity double precision default null,
  p_metadata jsonb default null,
  p_embedding_model text default null,
  p_query_text text default null,
  p_min_confidence double precision default null,
  p_source_types text[] default null,
  p_neighbours integer default null,
  p_recency_half_life interval default null,
  p_confidence_weight double precision default null,
  p_duplicate_distance double precision default null
)
returns table (
  memory_id uuid,
  namespace text,
  memory_type text,
  heading text,
  content text,
  confidence real,
  source_type text,
  supersedes uuid,
  expires_at timestamptz,
  deleted_at timestamptz,
  score double precision,
  distance double precision,
  vector_rank integer,
  text_rank integer,
  tokens integer
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
declare
  v_reranked constant boolean :=
    num_nonnulls(p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance) > 0;
  v_by_vector_alone constant boolean := p_query_text is null and not v_reranked;
  v_ranked record;
  -- Null where the vector alone ranks: then they follow from the distances.
  v_scores double precision[];
  v_vector_ranks integer[];
  v_text_ranks integer[];
begin
  if v_by_vector_alone then
    v_ranked := hydrator.rank_memories(
      p_query_embedding, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false
    );
  elsif v_reranked then
    v_ranked := hydrator.rerank_memories(
      p_query_embedding, p_query_text, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false,
      p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance, false
    );
  else
    v_ranked := hydrator.rank_hybrid(
      p_query_embedding, p_query_text, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, false
    );
  end if;
  if not v_by_vector_alone then
    v_scores := v_ranked.scores;
    v_vector_ranks := v_ranked.vector_ranks;
    v_text_ranks := v_ranked.text_ranks;
  end if;

  return query
  select
    m.memory_id, m.namespace, m.memory_type, m.heading, m.content, m.confidence, m.source_type,
    m.supersedes, m.expires_at, m.deleted_at,
    case when v_by_vector_alone then @similarity(r.distance)@ else v_scores[r.rank] end, r.distance,
    case when v_by_vector_alone then r.rank::integer else v_vector_ranks[r.rank] end, v_text_ranks[r.rank],
    m.content_tokens
  from unnest(v_ranked.namespaces, v_ranked.memory_ids, v_ranked.distances)
    with ordinality r (namespace, memory_id, distance, rank)
  join hydrator.memories m on m.namespace = r.namespace and m.memory_id = r.memory_id
  order by r.rank;
end
$function$;

comment on function hydrator.fetch_top_k_relevant(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) is 'Tier 2: the live memories most relevant to the query, by vector, text or both, in full, best first.';
revoke execute on function hydrator.fetch_top_k_relevant(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) from public;

-- functions/forget.sql
-- Takes a memory out of every call, without removing its row: true if it was live.
-- Another namespace's memory, an unknown or a dead one gives false. Writes one row.
create function hydrator.forget(p_namespace text, p_memory_id uuid)
returns boolean
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  update hydrator.live_memories m
  set deleted_at = now()
  where m.namespace = p_namespace collate "C" and m.memory_id = p_memory_id;
  return found;
end
$function$;

comment on function hydrator.forget(text, uuid) is
  'Soft-deletes a memory; true if it was live.';
revoke execute on function hydrator.forget(text, uuid) from public;

-- functions/granted_namespaces.sql
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

-- functions/guard_memory.sql
-- What a memory may hold, for every writer: remember(), an application's own insert, a DBA's
-- update. Raises MH008 for the heading, MH010 for another value, MH001 and MH002 for the
-- embedding, MH006 and MH007 for the memory it supersedes. Reads the superseded row and
-- locks it; retire_superseded() then retires it.
--
-- A memory names its predecessor once, when it is written; the predecessor must be there by
-- then, and neither changes its key: so a cycle cannot arise. The lock makes the second of
-- two concurrent successors wait, and then see the first.
create function hydrator.guard_memory()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  -- Whatever ends a line somewhere: in a terminal, in Python or in Unicode.
  c_line_break constant text := E'[\n\x0b\f\r\x1c-\x1e\u0085\u2028\u2029]';
  -- What every client can hold, in its own time zone.
  c_first_day constant timestamptz := '0001-01-02 00:00+00';
  c_last_day constant timestamptz := '9999-12-31 00:00+00';
  v_problem text;
  v_successor uuid;
begin
  if new.heading is null or new.heading !~ '[^@white_space@]' then
    raise exception 'heading is %', case when new.heading is null then 'null' else 'blank' end
      using errcode = 'MH008', hint = 'A heading is the line by which the compact index shows the memory.';
  elsif char_length(new.heading) > 200 then
    raise exception 'heading has % characters, at most 200 are allowed: "%..."',
        char_length(new.heading), left(new.heading, 40)
      using errcode = 'MH008', hint = 'Shorten it to one line; the content has room for the rest.';
  elsif new.heading ~ c_line_break then
    raise exception 'heading is not one line: "%"', regexp_replace(left(new.heading, 80), c_line_break, ' / ', 'g')
      using errcode = 'MH008', hint = 'Keep the first line as the heading and move the rest into the content.';
  end if;

  v_problem := case
    when new.namespace is null
      then 'namespace is null'
    when char_length(new.namespace) not between 1 and 255
      then format('namespace has %s characters, 1 to 255 are allowed', char_length(new.namespace))
    when new.content is null or new.content !~ '[^@white_space@]'
      then 'content is ' || case when new.content is null then 'null' else 'blank' end
    when new.memory_type is null or new.memory_type !~ '^[a-z][a-z0-9_-]{0,62}$'
      then format('memory_type is %L, not a lower-case word', new.memory_type)
    when new.source_type is null or new.source_type !~ '[^@white_space@]'
      then format('source_type is %L', new.source_type)
    when new.confidence is null or not new.confidence between 0 and 1
      then format('confidence is %L, not from 0 to 1', new.confidence)
    when not new.expires_at between c_first_day and c_last_day
      then format('expires_at is %s, not from the year 1 to the year 9999; null means never', new.expires_at)
    when not (least(new.created_at, new.updated_at, new.deleted_at) >= c_first_day
        and greatest(new.created_at, new.updated_at, new.deleted_at) <= c_last_day)
      then 'created_at, updated_at or deleted_at is not from the year 1 to the year 9999'
    when jsonb_typeof(new.metadata) is distinct from 'object'
      then format('metadata is a JSON %s, not an object', coalesce(jsonb_typeof(new.metadata), 'nothing'))
    when char_length(new.embedding_model) not between 1 and 255
      then format('embedding_model has %s characters, 1 to 255 are allowed', char_length(new.embedding_model))
    when new.token_count < 0
      then format('token_count is %s, not 0 or more', new.token_count)
    when new.quarantine_reason !~ '[^@white_space@]'
      then 'quarantine_reason is blank'
    when tg_op = 'INSERT' and new.quarantine_reason is not null and new.deleted_at is null
      then 'quarantine_reason is given and deleted_at is null'
  end;
  if v_problem is not null then
    raise exception '%', v_problem
      using errcode = 'MH010', hint = 'Comments on the columns of hydrator.memories say what each may hold.';
  end if;

  -- Of what is new, so that a limit which was lowered keeps nothing from being retired.
  if new.content is distinct from old.content
    and char_length(new.content) > hydrator.setting('max_content_chars') then
    raise exception 'content has % characters, at most % are allowed',
        char_length(new.content), hydrator.setting('max_content_chars')
      using errcode = 'MH010', hint = 'Store a summary, or raise the setting hydrator.max_content_chars.';
  end if;
  if new.metadata is distinct from old.metadata and new.metadata <> '{}' then
    if octet_length(new.metadata::text) > hydrator.setting('max_metadata_bytes') then
      raise exception 'metadata has % bytes as text, at most % are allowed',
          octet_length(new.metadata::text), hydrator.setting('max_metadata_bytes')
        using errcode = 'MH010', hint = 'Keep what filters need, or raise the setting hydrator.max_metadata_bytes.';
    -- A client whose reader of JSON gives up there could read no session of the namespace any more.
    elsif jsonb_path_exists(new.metadata, '$.**{100}') then
      raise exception 'metadata is nested more than 100 deep'
        using errcode = 'MH010', hint = 'Keep what filters need; deep structures belong into the content.';
    elsif jsonb_path_exists(new.metadata, '$.** ? (@ > 1e308 || @ < -1e308)') then
      raise exception 'metadata holds a number beyond 1e308'
        using errcode = 'MH010', hint = 'Keep such a number as a string.';
    end if;
  end if;

  if new.embedding is not null then
    perform hydrator.check_embedding('embedding', new.embedding::@extension_schema@.vector);
  end if;

  if tg_op = 'UPDATE' then
    if (new.namespace, new.memory_id) is distinct from (old.namespace, old.memory_id) then
      raise exception 'memory % of namespace "%" keeps its id and namespace', old.memory_id, old.namespace
        using errcode = 'MH010', hint = 'Write a new memory and forget the old one.';
    end if;
    if new.supersedes is not null and new.supersedes is distinct from old.supersedes then
      raise exception 'memory % cannot come to supersede % after it was written', new.memory_id, new.supersedes
        using errcode = 'MH010', hint = 'Write a new memory that supersedes it; a later change could close a cycle.';
    end if;
    if old.deleted_at is not null and new.deleted_at is null then
      select m.memory_id into v_successor
      from hydrator.memories m
      where m.namespace = new.namespace and m.supersedes = new.memory_id;
      if found then
        raise exception 'memory % cannot live again: % superseded it', new.memory_id, v_successor
          using errcode = 'MH007', hint = 'Write a new memory that supersedes the newest one.';
      end if;
    end if;
    -- Other words, and nobody has looked whether there are others like them.
    if (new.heading, new.content) is distinct from (old.heading, old.content)
      and new.digest is not distinct from old.digest then
      new.digest := null;
    end if;
    if new.deleted_at is null then
      new.quarantine_reason := null;
    end if;
    new.updated_at := now();
    return new;
  end if;

  if new.supersedes is not null then
    perform from hydrator.memories m
    where m.namespace = new.namespace and m.memory_id = new.supersedes
    for no key update;
    if not found then
      raise exception 'there is no memory % in namespace "%" to supersede', new.supersedes, new.namespace
        using errcode = 'MH006', hint = 'A memory supersedes one of its own namespace, by its id.';
    end if;

    select m.memory_id into v_successor
    from hydrator.memories m
    where m.namespace = new.namespace and m.supersedes = new.supersedes;
    if found then
      raise exception 'memory % is already superseded, by %', new.supersedes, v_successor
        using errcode = 'MH007', hint = format('Read %s; supersede the newest one, if it still needs it.', v_successor);
    end if;
  end if;
  return new;
end
$function$;

comment on function hydrator.guard_memory() is
  'Trigger: checks what a memory holds and which memory it may supersede, and keeps updated_at.';
revoke execute on function hydrator.guard_memory() from public;

-- functions/hash_words.sql
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

-- functions/hydrate_session.sql
-- A session's context in one call and one snapshot: the compact index, then the most
-- relevant memories in full, as far as the token budget goes.
--
-- The index always loads: whole, or with p_index_budget the leading run that fits. Pinned
-- memories come next (by confidence, then memory_id; of the filters only p_min_confidence and
-- p_source_types, which say what is trusted, apply to them) and may use at most half of what the
-- index left. Then the top-k in rank order, by the query's vector, its text or both (see
-- rank_hybrid(), and rerank_memories() where one of the last four parameters is given): packing
-- 'stop' ends at the first that would exceed the budget, 'skip' passes over it and goes on. Every
-- candidate that was not accepted is in dropped, with its reason: pinned_share, over_budget,
-- after_cutoff or duplicate_of, and then duplicate_of says of which.
--
-- Raises MH004 for an unknown packing and what index_json(), rank_hybrid() and rerank_memories()
-- raise.
-- Reads the index entries and the vectors of the namespaces' live rows, and the contents of
-- the accepted memories alone. Stable, so that all its queries see the caller's snapshot;
-- time zone and float digits are pinned so that the JSON is the same for every session.
create function hydrator.hydrate_session(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_top_k integer default 5,
  p_token_budget integer default 6000,
  p_index_budget integer default null,
  p_packing text default 'stop',
  p_memory_types text[] default null,
  p_min_similarity double precision default null,
  p_metadata jsonb default null,
  p_embedding_model text default null,
  p_query_text text default null,
  p_min_confidence double precision default null,
  p_source_types text[] default null,
  p_neighbours integer default null,
  p_recency_half_life interval default null,
  p_confidence_weight double precision default null,
  p_duplicate_distance double precision default null
)
returns table (
  index json,
  relevant json,
  dropped json,
  index_tokens integer,
  relevant_tokens integer,
  tokens_used integer,
  token_budget integer,
  truncated boolean,
  over_budget boolean,
  index_shown integer,
  index_total integer,
  ranked_by text
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set timezone = 'UTC'
set extra_float_digits = 1
as $function$
declare
  v_checked boolean;
  v_reranked constant boolean :=
    num_nonnulls(p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance) > 0;
  v_by_vector_alone constant boolean := p_query_text is null and not v_reranked;
  v_index record;
  -- Its arrays have an element a candidate: pinned ones first, then rank order.
  v_ranked record;
  v_reasons text[];
  v_pinned integer := 0;
  -- Of the ranked ones alone; null where the vector alone ranks: then they follow from the distances.
  v_scores double precision[];
  v_vector_ranks integer[];
  v_text_ranks integer[];
  -- Null where near-duplicates are not asked for.
  v_duplicates_of uuid[];
  v_dropped json;
  v_relevant_budget bigint;
  v_left bigint;
  v_cut_off boolean;
begin
  if p_packing is null or p_packing not in ('stop', 'skip') then
    raise exception 'packing is %', coalesce(quote_literal(p_packing), 'null')
      using errcode = 'MH004', hint = 'packing is ''stop'' or ''skip''.';
  end if;
  v_checked := hydrator.check_count('token_budget', p_token_budget);

  v_index := hydrator.index_json(p_namespaces, p_index_budget);
  if v_by_vector_alone then
    v_ranked := hydrator.rank_memories(
      p_query_embedding, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, true
    );
  elsif v_reranked then
    v_ranked := hydrator.rerank_memories(
      p_query_embedding, p_query_text, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, true,
      p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance, true
    );
    v_duplicates_of := v_ranked.duplicates_of;
  else
    v_ranked := hydrator.rank_hybrid(
      p_query_embedding, p_query_text, p_namespaces, p_top_k,
      p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
      p_min_confidence, p_source_types, true
    );
  end if;
  if not v_by_vector_alone then
    v_scores := v_ranked.scores;
    v_vector_ranks := v_ranked.vector_ranks;
    v_text_ranks := v_ranked.text_ranks;
  end if;

  if v_ranked.has_pinned then
    with pinned as (
      select
        m.namespace, m.memory_id, m.content_tokens,
        case when m.embedding is not null then
          (m.embedding operator(@extension_schema@.@distance_operator@)
            p_query_embedding::@extension_schema@.@vector_type@) + 0
        end as distance
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.pinned
        and (p_min_confidence is null or m.confidence >= p_min_confidence::real)
        and (p_source_types is null or m.source_type = any (p_source_types))
      order by m.confidence desc, m.memory_id, m.namespace
    )
    select
      array_agg(p.namespace) || v_ranked.namespaces, array_agg(p.memory_id) || v_ranked.memory_ids,
      array_agg(p.distance) || v_ranked.distances, array_agg(p.content_tokens) || v_ranked.tokens, count(*)
    into v_ranked.namespaces, v_ranked.memory_ids, v_ranked.distances, v_ranked.tokens, v_pinned
    from pinned p;
  end if;

  -- Negative where the index alone exceeds the budget: then not even a memory of no tokens fits.
  v_relevant_budget := p_token_budget - v_index.index_tokens;
  v_left := v_relevant_budget;
  for i in 1 .. cardinality(v_ranked.memory_ids) loop
    v_reasons[i] := case
      when v_duplicates_of[i - v_pinned] is not null then 'duplicate_of'
      when i <= v_pinned and v_relevant_budget - v_left + v_ranked.tokens[i] > floor(v_relevant_budget / 2.0)
        then 'pinned_share'
      when v_cut_off then 'after_cutoff'
      when v_ranked.tokens[i] > v_left then 'over_budget'
    end;
    if v_reasons[i] is null then
      v_left := v_left - v_ranked.tokens[i];
    elsif p_packing = 'stop' and v_reasons[i] = 'over_budget' then
      v_cut_off := true;
    end if;
  end loop;

  if num_nonnulls(variadic v_reasons) > 0 then
    select json_agg(r)
    into v_dropped
    from (
      select
        m.memory_id, m.heading,
        case when v_by_vector_alone and p.place > 0 then @similarity(c.distance)@ else v_scores[p.place] end as score,
        c.distance,
        case when v_by_vector_alone and p.place > 0 then p.place else v_vector_ranks[p.place] end as vector_rank,
        v_text_ranks[p.place] as text_rank, c.tokens, c.reason, v_duplicates_of[p.place] as duplicate_of
      from unnest(v_ranked.namespaces, v_ranked.memory_ids, v_ranked.distances, v_ranked.tokens, v_reasons)
        with ordinality c (namespace, memory_id, distance, tokens, reason, ordinality)
      cross join lateral (select c.ordinality - v_pinned as place) p
      join hydrator.memories m on m.namespace = c.namespace and m.memory_id = c.memory_id
      where c.reason is not null
      order by c.ordinality
    ) r;
  end if;

  return query
  select
    v_index.index, coalesce(json_agg(r), '[]'), coalesce(v_dropped, '[]'),
    v_index.index_tokens::integer, (v_relevant_budget - v_left)::integer, (p_token_budget - v_left)::integer,
    p_token_budget, v_dropped is not null, v_relevant_budget < 0, v_index.index_shown::integer,
    (case when p_index_budget is null then v_index.index_shown else v_ranked.live_rows end)::integer,
    v_ranked.ranked_by
  from (
    select
      m.memory_id, m.namespace, m.memory_type, m.heading, m.content, m.confidence, m.source_type,
      m.supersedes, m.expires_at, m.created_at, m.metadata, m.pinned,
      case when v_by_vector_alone and p.place > 0 then @similarity(c.distance)@ else v_scores[p.place] end as score,
      c.distance,
      case when v_by_vector_alone and p.place > 0 then p.place else v_vector_ranks[p.place] end as vector_rank,
      v_text_ranks[p.place] as text_rank, c.tokens
    from unnest(v_ranked.namespaces, v_ranked.memory_ids, v_ranked.distances, v_ranked.tokens, v_reasons)
      with ordinality c (namespace, memory_id, distance, tokens, reason, ordinality)
    -- Among the ranked ones: 0 or less for the pinned, which have neither score nor rank.
    cross join lateral (select c.ordinality - v_pinned as place) p
    join hydrator.memories m on m.namespace = c.namespace and m.memory_id = c.memory_id
    where c.reason is null
    order by c.ordinality
  ) r;
end
$function$;

comment on function hydrator.hydrate_session(
  @extension_schema@.vector, text[], integer, integer, integer, text, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) is 'A session''s context in one snapshot: the compact index, then the most relevant memories within the token budget.';
revoke execute on function hydrator.hydrate_session(
  @extension_schema@.vector, text[], integer, integer, integer, text, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) from public;

-- functions/index_json.sql
-- The compact index as JSON, with its tokens and the number of its entries: best confidence
-- first, ties by memory_id. With a budget, the longest leading run whose summed tokens fit.
-- Behind compact_index() and hydrate_session(). Raises MH003 and MH005. Reads memories_live_idx
-- alone, in which the entries of a namespace stand in that order: all of them, or those that fit
-- and one; of each of several namespaces at most as many as the budget has tokens.
create function hydrator.index_json(
  p_namespaces text[],
  p_token_budget integer,
  out index json,
  out index_tokens bigint,
  out index_shown bigint
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_sort = off
as $function$
declare
  v_checked constant boolean := hydrator.check_namespaces(p_namespaces)
    and (p_token_budget is null or hydrator.check_count('index_budget', p_token_budget));
  v_namespace constant text collate "C" := p_namespaces[array_lower(p_namespaces, 1)];
  v_entries json[] := '{}';
  v_entry json;
  v_tokens integer;
  v_left integer := p_token_budget;
begin
  if cardinality(p_namespaces) = 1 and p_token_budget is null then
    select json_agg(e.index_entry), coalesce(sum(e.index_tokens), 0), count(*)
    into index, index_tokens, index_shown
    from (
      select m.index_entry, m.index_tokens
      from hydrator.live_memories m
      where m.namespace = v_namespace
      order by m.confidence desc, m.memory_id
    ) e;
  elsif cardinality(p_namespaces) = 1 then
    -- The order is the index's: nothing is sorted, and nothing read beyond what fits.
    for v_entry, v_tokens in
      select m.index_entry, m.index_tokens
      from hydrator.live_memories m
      where m.namespace = v_namespace
      order by m.confidence desc, m.memory_id
    loop
      exit when v_tokens > v_left;
      v_left := v_left - v_tokens;
      v_entries := array_append(v_entries, v_entry);
    end loop;
    index := array_to_json(v_entries);
    index_shown := cardinality(v_entries);
    index_tokens := p_token_budget - v_left;
  else
    with leading_entry as (
      -- An entry has a token at least, so that no more than the budget can fit.
      select e.*
      from (select distinct u.namespace from unnest(p_namespaces) u (namespace)) n
      cross join lateral (
        select m.namespace, m.memory_id, m.confidence, m.index_entry, m.index_tokens
        from hydrator.live_memories m
        where m.namespace = n.namespace collate "C"
        order by m.confidence desc, m.memory_id
        limit p_token_budget
      ) e
    ),
    entry as (
      select
        l.index_entry, l.index_tokens,
        sum(l.index_tokens) over (
          order by l.confidence desc, l.memory_id, l.namespace
          rows between unbounded preceding and current row
        ) as running_tokens
      from leading_entry l
    )
    -- In the order of the window.
    select json_agg(e.index_entry), coalesce(sum(e.index_tokens), 0), count(*)
    into index, index_tokens, index_shown
    from entry e
    where p_token_budget is null or e.running_tokens <= p_token_budget;
  end if;

  -- Not by coalesce(), which would copy it.
  if index is null then
    index := '[]';
  end if;
end
$function$;

comment on function hydrator.index_json(text[], integer) is
  'The compact index as JSON, its tokens and the number of its entries; see compact_index().';
revoke execute on function hydrator.index_json(text[], integer) from public;

-- functions/installation.sql
-- What was settled at install: how long the embeddings are, how they are stored and
-- compared, where pgvector lives, and how texts are read. For whoever is about to embed. Reads one row.
create function hydrator.installation()
returns table (
  dimensions integer,
  vector_type text,
  distance text,
  extension_schema text,
  text_search_config text
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return query
  select i.dimensions, i.vector_type, i.distance, i.extension_schema, i.text_search_config
  from hydrator.installed i;
end
$function$;

comment on function hydrator.installation() is
  'The settings of this installation: dimensions, vector type, distance, schema of the extension, text search configuration.';
revoke execute on function hydrator.installation() from public;

-- functions/lend_worth.sql
-- What the neighbours of p_places lend to one another, for rerank_memories(), which says how: its
-- candidates as parallel arrays, with the worth they have now, and all that joined them. Reads
-- every live row of the namespaces. Plans hash, since how many rows those are is not known to a
-- generic plan.
create function hydrator.lend_worth(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_memory_types text[],
  p_min_similarity double precision,
  p_metadata jsonb,
  p_min_confidence double precision,
  p_source_types text[],
  p_skip_pinned boolean,
  p_places integer,
  p_candidate_namespaces text[],
  p_memory_ids uuid[],
  p_scores double precision[],
  p_distances double precision[],
  p_vector_ranks integer[],
  p_text_ranks integer[],
  out namespaces text[],
  out memory_ids uuid[],
  out scores double precision[],
  out distances double precision[],
  out vector_ranks integer[],
  out text_ranks integer[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_nestloop = off
as $function$
declare
  v_query constant @extension_schema@.@vector_type@ := p_query_embedding::@extension_schema@.@vector_type@;
  v_places constant integer := greatest(least(p_places, 10), 0);
begin
  with candidate as (
    select u.namespace collate "C" as namespace, u.memory_id, u.score, u.distance, u.vector_rank, u.text_rank, u.rank
    from unnest(p_candidate_namespaces, p_memory_ids, p_scores, p_distances, p_vector_ranks, p_text_ranks)
      with ordinality u (namespace, memory_id, score, distance, vector_rank, text_rank, rank)
  ),
  placed as materialized (
    select
      m.namespace, m.memory_id, row_number() over by_source as place,
      row_number() over by_source - row_number() over (
        partition by m.namespace, m.source_type, coalesce(m.metadata #>> '{source,name}', '') collate "C"
        order by m.created_at, m.memory_id
      ) as source,
      (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
        and (p_metadata is null or m.metadata @> p_metadata)
        and (p_min_confidence is null or m.confidence >= p_min_confidence::real)
        and (p_source_types is null or m.source_type = any (p_source_types))
        and not (p_skip_pinned and m.pinned) as passes
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C")
    window by_source as (
      order by m.namespace, m.source_type, coalesce(m.metadata #>> '{source,name}', '') collate "C",
        m.created_at, m.memory_id
    )
  ),
  lender as (
    select p.source, p.place, c.score, c.rank
    from candidate c
    join placed p on p.namespace = c.namespace and p.memory_id = c.memory_id
  ),
  lent as (
    select l.source, l.place + o.places as place, sum(l.score * 0.4::double precision ^ abs(o.places) order by l.rank) as score
    from lender l
    cross join generate_series(-v_places, v_places) o (places)
    group by 1, 2
  ),
  joined as (
    select p.namespace, p.memory_id, l.score, c.distance, c.vector_rank, c.text_rank, c.rank
    from lent l
    join placed p on p.place = l.place and p.source = l.source
    left join candidate c on c.namespace = p.namespace and c.memory_id = p.memory_id
    where p.passes or c.rank is not null
  )
  select
    coalesce(array_agg(j.namespace), '{}'), coalesce(array_agg(j.memory_id), '{}'), coalesce(array_agg(j.score), '{}'),
    coalesce(array_agg(j.distance), '{}'), coalesce(array_agg(j.vector_rank), '{}'), coalesce(array_agg(j.text_rank), '{}')
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks
  from joined j;

  if v_query is null then
    return;
  end if;
  -- What joined has its distance still to come, and the floor to reach.
  with measured as (
    select
      u.*, coalesce(u.distance, (m.embedding operator(@extension_schema@.@distance_operator@) v_query) + 0) as measured
    from unnest(namespaces, memory_ids, scores, distances, vector_ranks, text_ranks)
      u (namespace, memory_id, score, distance, vector_rank, text_rank)
    join hydrator.memories m on m.namespace = u.namespace collate "C" and m.memory_id = u.memory_id
    where m.namespace = any (p_namespaces collate "C")
      and m.memory_id = any (memory_ids)
  )
  select
    coalesce(array_agg(m.namespace), '{}'), coalesce(array_agg(m.memory_id), '{}'), coalesce(array_agg(m.score), '{}'),
    coalesce(array_agg(m.measured), '{}'), coalesce(array_agg(m.vector_rank), '{}'), coalesce(array_agg(m.text_rank), '{}')
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks
  from measured m
  where p_min_similarity is null
    or coalesce(hydrator.similarity(m.measured)::real >= p_min_similarity::real, false);
end
$function$;

comment on function hydrator.lend_worth(
  @extension_schema@.vector, text[], text[], double precision, jsonb, double precision, text[], boolean, integer,
  text[], uuid[], double precision[], double precision[], integer[], integer[]
) is 'Candidates and their neighbours in their sources, with what these lend to one another: parallel arrays.';
revoke execute on function hydrator.lend_worth(
  @extension_schema@.vector, text[], text[], double precision, jsonb, double precision, text[], boolean, integer,
  text[], uuid[], double precision[], double precision[], integer[], integer[]
) from public;

-- functions/limit_rate.sql
-- Holds the memories that are written into a namespace in an hour of the clock to the setting
-- hydrator.max_memories_per_hour, a statement at a time; by default there is no limit, and nothing
-- is read or written. What other transactions have not yet committed is not seen, so that many at
-- once may go over by as much. Raises MH012. Writes a row for each namespace.
create function hydrator.limit_rate()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_limit constant integer := hydrator.setting('max_memories_per_hour');
  v_hour constant timestamptz := date_trunc('hour', now());
  v_new record;
  v_written bigint;
begin
  if v_limit = 0 then
    return null;
  end if;

  for v_new in select n.namespace, count(*) as written from new_rows n group by n.namespace order by n.namespace loop
    update hydrator.namespace_rates r
    set hour = v_hour, written = v_new.written + case when r.hour = v_hour then r.written else 0 end
    where r.namespace = v_new.namespace and r.writer = pg_backend_pid();
    if not found then
      -- A backend's first memory takes the rows of earlier hours away.
      delete from hydrator.namespace_rates r
      where r.namespace = v_new.namespace
        and r.writer in (
          select o.writer
          from hydrator.namespace_rates o
          where o.namespace = v_new.namespace
            and o.hour < v_hour
            and current_setting('transaction_isolation') = 'read committed'
          for update skip locked
        );
      insert into hydrator.namespace_rates (namespace, writer, hour, written)
      values (v_new.namespace, pg_backend_pid(), v_hour, v_new.written);
    end if;

    select sum(r.written) into v_written
    from hydrator.namespace_rates r
    where r.namespace = v_new.namespace and r.hour = v_hour;
    if v_written > v_limit then
      raise exception 'namespace "%" would have % new memories in this hour, at most % are allowed',
          v_new.namespace, v_written, v_limit
        using errcode = 'MH012',
          hint = format('Write again after %s, or raise hydrator.max_memories_per_hour.', v_hour + interval '1 hour');
    end if;
  end loop;
  return null;
end
$function$;

comment on function hydrator.limit_rate() is
  'Trigger: refuses more new memories of a namespace in an hour than hydrator.max_memories_per_hour.';
revoke execute on function hydrator.limit_rate() from public;

-- functions/list_quarantined.sql
-- The memories in quarantine, latest first, ties by memory_id, with the reason. Raises MH005.
-- Reads them alone.
create function hydrator.list_quarantined(p_namespaces text[])
returns table (
  memory_id uuid,
  namespace text,
  heading text,
  source_type text,
  confidence real,
  quarantined_at timestamptz,
  reason text
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  perform hydrator.check_namespaces(p_namespaces);

  return query
  select m.memory_id, m.namespace, m.heading, m.source_type, m.confidence, m.deleted_at, m.quarantine_reason
  from hydrator.memories m
  where m.namespace = any (p_namespaces collate "C")
    and m.quarantine_reason is not null
  order by m.deleted_at desc, m.memory_id, m.namespace;
end
$function$;

comment on function hydrator.list_quarantined(text[]) is
  'The memories in quarantine, latest first, with the reason.';
revoke execute on function hydrator.list_quarantined(text[]) from public;

-- functions/memory_digest.sql
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

-- functions/near_duplicates.sql
-- Pairs of live memories of one namespace whose vectors, of one model, are no further apart than
-- p_distance (in the installation's measure), nearest first, ties by their ids; each pair once.
-- For a report: compares every vector of a namespace with every other. Raises MH003 and MH005.
create function hydrator.near_duplicates(
  p_namespaces text[],
  p_distance double precision default 0.05,
  p_limit integer default 20
)
returns table (
  namespace text,
  memory_id uuid,
  heading text,
  other_memory_id uuid,
  other_heading text,
  distance double precision
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
begin
  perform hydrator.check_namespaces(p_namespaces);
  perform hydrator.check_count('limit', p_limit);
  if p_distance is null or p_distance = 'NaN' then
    raise exception 'distance is %', coalesce(p_distance::text, 'null')
      using errcode = 'MH003', hint = 'Pass the largest distance at which two memories count as near.';
  end if;

  return query
  with vector_of as materialized (
    select m.namespace, m.memory_id, m.heading, m.embedding, m.embedding_model
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C") and m.embedding is not null
  )
  select o.namespace, o.memory_id, o.heading, t.memory_id, t.heading, d.distance
  from vector_of o
  join vector_of t on t.namespace = o.namespace and t.memory_id > o.memory_id
  cross join lateral (
    select o.embedding operator(@extension_schema@.@distance_operator@) t.embedding as distance
  ) d
  where o.embedding_model is not distinct from t.embedding_model
    and d.distance <= p_distance
  order by d.distance, o.memory_id, t.memory_id, o.namespace
  limit p_limit;
end
$function$;

comment on function hydrator.near_duplicates(text[], double precision, integer) is
  'Pairs of live memories of a namespace whose vectors are near one another, nearest first.';
revoke execute on function hydrator.near_duplicates(text[], double precision, integer) from public;

-- functions/purge.sql
-- Removes for good what has been dead (deleted, superseded or expired) for longer than
-- p_older_than, in every namespace, and returns the number of rows. What superseded a
-- removed memory stays, without a predecessor; what is in quarantine stays too. Raises MH003 for a null or negative
-- interval. For a scheduled job: reads the whole table.
create function hydrator.purge(p_older_than interval)
returns bigint
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_purged bigint;
begin
  -- By the clock, since an interval's parts may differ in sign ('-12 months 360 days').
  if p_older_than is null or now() - p_older_than > now() then
    raise exception 'older_than is %', coalesce(p_older_than::text, 'null')
      using errcode = 'MH003', hint = 'Pass how long a memory must have been dead, such as interval ''30 days''.';
  end if;

  -- least() passes over nulls: the moment of death, whichever came first.
  delete from hydrator.memories m
  where least(m.deleted_at, m.expires_at) < now() - p_older_than
    and m.quarantine_reason is null;
  get diagnostics v_purged = row_count;
  return v_purged;
end
$function$;

comment on function hydrator.purge(interval) is
  'Physically removes the memories that have been dead for longer than this; the number of rows.';
revoke execute on function hydrator.purge(interval) from public;

-- functions/quarantine.sql
-- Takes a memory out of every call, as forget() does, and keeps it: purge() passes over it, and
-- release() brings it back. True if it was live. Raises MH010 for a blank reason. Writes one row.
create function hydrator.quarantine(
  p_namespace text,
  p_memory_id uuid,
  p_reason text default 'no reason given'
)
returns boolean
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  update hydrator.live_memories m
  set deleted_at = now(), quarantine_reason = coalesce(p_reason, 'no reason given')
  where m.namespace = p_namespace collate "C" and m.memory_id = p_memory_id;
  return found;
end
$function$;

comment on function hydrator.quarantine(text, uuid, text) is
  'Takes a memory out of every call without losing it; release() brings it back. True if it was live.';
revoke execute on function hydrator.quarantine(text, uuid, text) from public;

-- functions/rank_hybrid.sql
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

-- functions/rank_memories.sql
-- The ranking by vector, in its one place: the live memories nearest to the query, nearest first,
-- ties by memory_id, as parallel arrays; min(p_top_k, rankable live rows) of them, however the
-- ranking is made: where an approximate way falls short, the call finishes exactly. Beside them what
-- survey_namespaces() found. Behind rank_hybrid() and the calls, where they have no text;
-- hydrate_session() passes p_skip_pinned, since pinned memories take no place in its top-k.
-- Raises MH001, MH002, MH003, MH005, MH009.
--
-- Reads, by the way that choose_ranking() finds: the vectors of the namespaces' live rows
-- (exact); their signs, and the vectors of the best p_top_k (at least 5) times
-- hydrator.rerank_factor (bits); or what an HNSW scan visits.
-- Plans are generic, and the disabled ways leave the planner one plan for each statement, so
-- that none is kept that was made for another tenant.
create function hydrator.rank_memories(
  p_query_embedding @extension_schema@.vector,
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
  out distances double precision[],
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
set enable_bitmapscan = off
as $function$
declare
  v_query constant @extension_schema@.@vector_type@ := hydrator.check_embedding('query_embedding', p_query_embedding);
  v_checked constant boolean := hydrator.check_namespaces(p_namespaces)
    and hydrator.check_count('top_k', p_top_k)
    and (p_min_similarity is null or hydrator.check_floor('min_similarity', p_min_similarity))
    and (p_min_confidence is null or hydrator.check_floor('min_confidence', p_min_confidence));
  v_survey constant record := hydrator.survey_namespaces(p_namespaces, p_embedding_model);
  -- Asked once, and not each filter of each row.
  v_unfiltered constant boolean := num_nonnulls(p_memory_types, p_metadata, p_min_confidence, p_source_types) = 0
    and not (p_skip_pinned and v_survey.has_pinned);
  v_bits bit(@dimensions@);
  v_candidates bigint;
  v_furthest double precision;
  v_visited integer;
  v_ef_search text;
  v_iterative_scan text;
  v_kept integer;
begin
  if v_survey.has_other_models then
    perform hydrator.check_embedding_model(p_embedding_model, p_namespaces);
  end if;
  live_rows := v_survey.live_rows;
  has_pinned := v_survey.has_pinned;
  ranked_by := hydrator.choose_ranking(
    live_rows, num_nonnulls(p_metadata, p_min_confidence, p_source_types) > 0
  );

  if ranked_by = 'bits' then
    v_bits := @extension_schema@.binary_quantize(v_query)::bit(@dimensions@);
    -- A nearest one or two need no fewer candidates than five.
    v_candidates := least(greatest(p_top_k, 5)::bigint * hydrator.setting('rerank_factor'), 1000000000);
    -- The furthest of as many candidates among the first rows: none that is further than it can be
    -- one among all, and what is left out here need not be sorted.
    select case when count(*) < v_candidates then 'Infinity' else max(c.distance) end
    into v_furthest
    from (
      select f.distance
      from (
        select m.embedding_bits operator(@extension_schema@.<~>) v_bits as distance
        from hydrator.live_memories m
        where m.namespace = any (p_namespaces collate "C")
          and m.embedding_bits is not null
          and (v_unfiltered
            or (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
            and not (p_skip_pinned and m.pinned))
        limit v_candidates * 8
      ) f
      order by f.distance
      limit v_candidates
    ) c;

    with candidate as materialized (
      select
        m.embedding_bits operator(@extension_schema@.<~>) v_bits as distance, m.memory_id, m.namespace
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.embedding_bits operator(@extension_schema@.<~>) v_bits <= v_furthest
        and (v_unfiltered
          or (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
          and not (p_skip_pinned and m.pinned))
      order by 1
      limit v_candidates
    ),
    nearest as (
      select
        (m.embedding operator(@extension_schema@.@distance_operator@) v_query) + 0 as distance,
        c.memory_id, c.namespace, m.content_tokens
      from candidate c
      join hydrator.memories m on m.namespace = c.namespace and m.memory_id = c.memory_id
      order by 1, c.memory_id, c.namespace
      limit p_top_k
    )
    select array_agg(n.namespace), array_agg(n.memory_id), array_agg(n.distance), array_agg(n.content_tokens)
    into namespaces, memory_ids, distances, tokens
    from nearest n;
  elsif ranked_by = 'hnsw' then
    v_ef_search := current_setting('hnsw.ef_search', true);
    v_iterative_scan := current_setting('hnsw.iterative_scan', true);
    -- The larger the graph, the further a search looks, lest it ends in a cluster beside the nearest.
    select least(greatest(
      hydrator.setting('ef_search') * (greatest(c.reltuples, 125000) / 125000) ^ (2 / 3.0), p_top_k * 2.0, 1
    ), 1000)::integer
    into v_visited
    from pg_class c
    where c.oid = 'hydrator.memories'::regclass;
    perform set_config('hnsw.ef_search', v_visited::text, true);
    if v_iterative_scan is not null then
      perform set_config('hnsw.iterative_scan', 'relaxed_order', true);
    end if;

    with visited as materialized (
      select
        m.namespace, m.memory_id, m.content_tokens,
        m.embedding operator(@extension_schema@.@distance_operator@) v_query as distance
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and (v_unfiltered
          or (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
          and (p_metadata is null or m.metadata @> p_metadata)
          and (p_min_confidence is null or m.confidence >= p_min_confidence::real)
          and (p_source_types is null or m.source_type = any (p_source_types))
          and not (p_skip_pinned and m.pinned))
      order by m.embedding operator(@extension_schema@.@distance_operator@) v_query
      -- In relaxed order, what is found late may be nearer than what was found first.
      limit p_top_k::bigint * 2
    ),
    nearest as (
      select v.distance + 0 as distance, v.memory_id, v.namespace, v.content_tokens
      from visited v
      order by 1, v.memory_id, v.namespace
      limit p_top_k
    )
    select array_agg(n.namespace), array_agg(n.memory_id), array_agg(n.distance), array_agg(n.content_tokens)
    into namespaces, memory_ids, distances, tokens
    from nearest n;

    -- They would hold until the caller's transaction ends.
    perform set_config('hnsw.ef_search', v_ef_search, true);
    if v_iterative_scan is not null then
      perform set_config('hnsw.iterative_scan', v_iterative_scan, true);
    end if;
  end if;

  if ranked_by = 'exact' or coalesce(cardinality(memory_ids), 0) < p_top_k then
    ranked_by := 'exact';
    with nearest as (
      -- The + 0 keeps an approximate index from answering for an exact scan.
      select
        (m.embedding operator(@extension_schema@.@distance_operator@) v_query) + 0 as distance,
        m.memory_id, m.namespace, m.content_tokens
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.embedding is not null
        and (v_unfiltered
          or (p_memory_types is null or m.memory_type = any (p_memory_types collate "C"))
          and (p_metadata is null or m.metadata @> p_metadata)
          and (p_min_confidence is null or m.confidence >= p_min_confidence::real)
          and (p_source_types is null or m.source_type = any (p_source_types))
          and not (p_skip_pinned and m.pinned))
      order by 1, m.memory_id, m.namespace
      limit p_top_k
    )
    select array_agg(n.namespace), array_agg(n.memory_id), array_agg(n.distance), array_agg(n.content_tokens)
    into namespaces, memory_ids, distances, tokens
    from nearest n;
  end if;

  if memory_ids is null then
    namespaces := '{}';
    memory_ids := '{}';
    distances := '{}';
    tokens := '{}';
  end if;

  if p_min_similarity is not null then
    -- The floor after the limit, since similarity falls as distance grows; both as real, so that a
    -- similarity equal to the floor passes.
    select count(*) into v_kept
    from unnest(distances) d (distance)
    where @similarity(d.distance)@::real >= p_min_similarity::real;
    namespaces := namespaces[:v_kept];
    memory_ids := memory_ids[:v_kept];
    distances := distances[:v_kept];
    tokens := tokens[:v_kept];
  end if;
end
$function$;

comment on function hydrator.rank_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, double precision, text[], boolean
) is 'The live memories nearest to a query, nearest first: parallel arrays, how they were ranked, and what the survey found.';
revoke execute on function hydrator.rank_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, double precision, text[], boolean
) from public;

-- functions/release.sql
-- Brings a memory back from quarantine; true if it was there. Raises MH007 where another memory
-- has superseded it since. Writes one row.
create function hydrator.release(p_namespace text, p_memory_id uuid)
returns boolean
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  update hydrator.memories m
  set deleted_at = null
  where m.namespace = p_namespace collate "C"
    and m.memory_id = p_memory_id
    and m.quarantine_reason is not null;
  return found;
end
$function$;

comment on function hydrator.release(text, uuid) is
  'Brings a memory back from quarantine; true if it was there.';
revoke execute on function hydrator.release(text, uuid) from public;

-- functions/remember.sql
-- Writes a memory and returns its id; with p_supersedes the old one is retired in the same
-- transaction. Without a content the heading says it all. A null for a parameter with a default
-- means the default. Raises what guard_memory() raises, and MH009 where the namespace holds
-- vectors of another model. Writes one row, or two.
--
-- Where the namespace has a live memory of the same heading and content that remember() wrote,
-- nothing is written, whatever the other parameters say, and the id is that one's: to change it,
-- supersede it. So too where such a one is in quarantine, and it stays there. A memory that
-- supersedes another is always written.
create function hydrator.remember(
  p_namespace text,
  p_heading text,
  p_content text default null,
  p_embedding @extension_schema@.vector default null,
  p_memory_type text default 'semantic',
  p_confidence double precision default 1,
  p_source_type text default 'agent',
  p_supersedes uuid default null,
  p_expires_at timestamptz default null,
  p_pinned boolean default false,
  p_metadata jsonb default '{}',
  p_embedding_model text default null,
  p_token_count integer default null
)
returns uuid
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_content constant text := coalesce(p_content, p_heading);
  v_digest uuid := hydrator.memory_digest(p_heading, v_content);
  v_memory_id uuid;
  v_is_expired boolean;
begin
  if p_embedding is not null then
    -- Here, before the column's own type can refuse it with a poorer message.
    perform hydrator.check_embedding('embedding', p_embedding);
    if p_embedding_model is not null then
      perform hydrator.check_embedding_model(p_embedding_model, array[p_namespace]);
    end if;
  end if;

  if p_supersedes is not null then
    -- First, so that its successor may say the same.
    update hydrator.memories m
    set deleted_at = now()
    where m.namespace = p_namespace collate "C" and m.memory_id = p_supersedes and m.deleted_at is null;
  end if;

  loop
    insert into hydrator.memories as m (
      namespace, heading, content, embedding, memory_type, confidence, source_type,
      supersedes, expires_at, pinned, metadata, embedding_model, token_count, digest
    )
    values (
      p_namespace, p_heading, v_content,
      p_embedding::@extension_schema@.@vector_type@,
      coalesce(p_memory_type, 'semantic'), coalesce(p_confidence, 1), coalesce(p_source_type, 'agent'),
      p_supersedes, p_expires_at, coalesce(p_pinned, false), coalesce(p_metadata, '{}'),
      p_embedding_model, p_token_count, v_digest
    )
    on conflict (namespace, digest)
      where digest is not null and (deleted_at is null or quarantine_reason is not null)
      do nothing
    returning m.memory_id into v_memory_id;
    exit when found;

    if p_supersedes is not null then
      v_digest := null;
      continue;
    end if;
    select
      m.memory_id,
      m.quarantine_reason is null and not exists (
        select from hydrator.live_memories l where l.namespace = m.namespace and l.memory_id = m.memory_id
      )
    into v_memory_id, v_is_expired
    from hydrator.memories m
    where m.namespace = p_namespace collate "C"
      and m.digest = v_digest
      and (m.deleted_at is null or m.quarantine_reason is not null);
    exit when found and v_is_expired is not true;
    -- One that has expired gives its claim up; one that is gone by now has none.
    update hydrator.memories m
    set digest = null
    where m.namespace = p_namespace collate "C" and m.memory_id = v_memory_id;
  end loop;
  return v_memory_id;
end
$function$;

comment on function hydrator.remember(
  text, text, text, @extension_schema@.vector, text, double precision, text, uuid, timestamptz, boolean, jsonb, text, integer
) is 'Writes a memory and returns its id, or the id of the one that says the same; retires the one it supersedes.';
revoke execute on function hydrator.remember(
  text, text, text, @extension_schema@.vector, text, double precision, text, uuid, timestamptz, boolean, jsonb, text, integer
) from public;

-- functions/render_entry.sql
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

-- functions/rerank_memories.sql
-- The ranking where one of the parameters is given that are off by default; behind the calls that
-- rank_hybrid() is behind, and the same after every way of ranking: by vector, by text or both.
-- The best of rank_hybrid(), four times p_top_k but at least 50, are its candidates. A candidate's
-- worth is what its score is above the least candidate's, and then, in this order:
--
-- p_neighbours: the memories up to so many places (10 at most) before or after a candidate in its
-- source lend to each other and join the candidates, with a worth of 0, where they pass the
-- filters. One d places away lends 0.4 ^ d times its worth. A source is what has one namespace,
-- source_type and metadata #>> '{source,name}' (none is one too); its order is created_at,
-- memory_id.
-- p_recency_half_life: the worth halves each time that created_at is so much older.
-- p_confidence_weight: the worth is taken times confidence ^ p_confidence_weight.
-- p_duplicate_distance: a candidate whose vector is no further than this (in the installation's
-- measure) from one that is better ranked, of the same model and no duplicate itself, takes no
-- place. With p_tell_duplicates those that would have had one follow at the end, duplicates_of
-- saying of which.
--
-- The worth is the score; ties end by memory_id. A neighbour that joins has a distance, but no
-- rank by either side. Raises MH003 for a negative or NaN parameter or a half-life that is not
-- positive, and what rank_hybrid() raises. Reads what rank_hybrid() reads, the rows of the
-- candidates, with p_duplicate_distance their vectors (each is compared with each), and with
-- p_neighbours every live row of the namespaces.
create function hydrator.rerank_memories(
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
  p_neighbours integer,
  p_recency_half_life interval,
  p_confidence_weight double precision,
  p_duplicate_distance double precision,
  p_tell_duplicates boolean,
  out namespaces text[],
  out memory_ids uuid[],
  out scores double precision[],
  out distances double precision[],
  out vector_ranks integer[],
  out text_ranks integer[],
  out tokens integer[],
  out ranked_by text,
  out live_rows bigint,
  out has_pinned boolean,
  out duplicates_of uuid[]
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
declare
  v_half_life constant double precision := extract(epoch from p_recency_half_life);
  v_ranked record;
  v_pairs record;
  v_order integer[];
begin
  perform hydrator.check_count('top_k', p_top_k);
  if p_neighbours is not null then
    perform hydrator.check_count('neighbours', p_neighbours);
  end if;
  perform hydrator.check_floor('duplicate_distance', p_duplicate_distance);
  if v_half_life <= 0 or v_half_life = 'Infinity' then
    raise exception 'recency_half_life is %', p_recency_half_life
      using errcode = 'MH003', hint = 'Pass an interval above 0, or null to take no account of age.';
  end if;
  if p_confidence_weight < 0 or p_confidence_weight in ('NaN', 'Infinity') then
    raise exception 'confidence_weight is %', p_confidence_weight
      using errcode = 'MH003', hint = 'Pass 0 or more, or null to take no account of confidence.';
  end if;

  v_ranked := hydrator.rank_hybrid(
    p_query_embedding, p_query_text, p_namespaces,
    case when p_top_k > 0 then least(greatest(p_top_k::bigint * 4, 50), 2147483647)::integer else 0 end,
    p_memory_types, p_min_similarity, p_metadata, p_embedding_model,
    p_min_confidence, p_source_types, p_skip_pinned
  );
  namespaces := v_ranked.namespaces;
  memory_ids := v_ranked.memory_ids;
  scores := array(select u.score - min(u.score) over () from unnest(v_ranked.scores) with ordinality u (score, rank) order by u.rank);
  distances := v_ranked.distances;
  vector_ranks := v_ranked.vector_ranks;
  text_ranks := v_ranked.text_ranks;
  ranked_by := v_ranked.ranked_by;
  live_rows := v_ranked.live_rows;
  has_pinned := v_ranked.has_pinned;

  if p_neighbours > 0 then
    select l.* into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks
    from hydrator.lend_worth(
      p_query_embedding, p_namespaces,
      p_memory_types, p_min_similarity, p_metadata, p_min_confidence, p_source_types, p_skip_pinned,
      p_neighbours, namespaces, memory_ids, scores, distances, vector_ranks, text_ranks
    ) l;
  end if;

  with worth as (
    select
      u.namespace, u.memory_id, u.distance, u.vector_rank, u.text_rank, m.content_tokens,
      floor(
        u.score
        -- What is below 2 ^ -1000 is worth nothing, and would be an underflow.
        * case when v_half_life is null then 1 else 0.5::double precision ^ least(
            greatest(extract(epoch from now() - m.created_at), 0)::double precision / v_half_life, 1000) end
        * case when p_confidence_weight is null then 1
            when m.confidence > 0 then exp(greatest(ln(m.confidence::double precision) * p_confidence_weight, -700))
            when p_confidence_weight = 0 then 1 else 0 end
        * 1e9 + 0.5
      ) / 1e9 as score
    from unnest(namespaces, memory_ids, scores, distances, vector_ranks, text_ranks)
      u (namespace, memory_id, score, distance, vector_rank, text_rank)
    join hydrator.memories m on m.namespace = u.namespace collate "C" and m.memory_id = u.memory_id
    order by 7 desc, u.memory_id, u.namespace collate "C"
  )
  select
    coalesce(array_agg(w.namespace), '{}'), coalesce(array_agg(w.memory_id), '{}'),
    coalesce(array_agg(w.score), '{}'), coalesce(array_agg(w.distance), '{}'),
    coalesce(array_agg(w.vector_rank), '{}'), coalesce(array_agg(w.text_rank), '{}'),
    coalesce(array_agg(w.content_tokens), '{}'), array_agg(null::uuid)
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks, tokens, duplicates_of
  from worth w;

  if p_duplicate_distance is not null then
    for v_pairs in
      with vector_of as materialized (
        select u.rank, m.embedding, m.embedding_model
        from unnest(namespaces, memory_ids) with ordinality u (namespace, memory_id, rank)
        join hydrator.memories m on m.namespace = u.namespace collate "C" and m.memory_id = u.memory_id
        where m.embedding is not null
      )
      select b.rank as better, w.rank as worse
      from vector_of b
      join vector_of w on w.rank > b.rank
      where b.embedding_model is not distinct from w.embedding_model
        and (b.embedding operator(@extension_schema@.@distance_operator@) w.embedding) <= p_duplicate_distance
      order by w.rank, b.rank
    loop
      if duplicates_of[v_pairs.better] is null and duplicates_of[v_pairs.worse] is null then
        duplicates_of[v_pairs.worse] := memory_ids[v_pairs.better];
      end if;
    end loop;
  end if;

  -- The places: the first p_top_k that are no duplicates, then the duplicates met before the last.
  select array_agg(d.rank::integer order by d.duplicate, d.rank)
  into v_order
  from (
    select
      u.rank, u.duplicate_of is not null as duplicate,
      count(*) filter (where u.duplicate_of is null) over (order by u.rank rows unbounded preceding) as place
    from unnest(duplicates_of) with ordinality u (duplicate_of, rank)
  ) d
  where case when d.duplicate then p_tell_duplicates and d.place < p_top_k else d.place <= p_top_k end;

  select
    coalesce(array_agg(namespaces[o.rank] order by o.place), '{}'),
    coalesce(array_agg(memory_ids[o.rank] order by o.place), '{}'),
    coalesce(array_agg(scores[o.rank] order by o.place), '{}'),
    coalesce(array_agg(distances[o.rank] order by o.place), '{}'),
    coalesce(array_agg(vector_ranks[o.rank] order by o.place), '{}'),
    coalesce(array_agg(text_ranks[o.rank] order by o.place), '{}'),
    coalesce(array_agg(tokens[o.rank] order by o.place), '{}'),
    coalesce(array_agg(duplicates_of[o.rank] order by o.place), '{}')
  into namespaces, memory_ids, scores, distances, vector_ranks, text_ranks, tokens, duplicates_of
  from unnest(v_order) with ordinality o (rank, place);
end
$function$;

comment on function hydrator.rerank_memories(
  @extension_schema@.vector, text, text[], integer, text[], double precision, jsonb, text, double precision, text[],
  boolean, integer, interval, double precision, double precision, boolean
) is 'The ranking with neighbours, recency, confidence and near-duplicates taken into account: parallel arrays, best first.';
revoke execute on function hydrator.rerank_memories(
  @extension_schema@.vector, text, text[], integer, text[], double precision, jsonb, text, double precision, text[],
  boolean, integer, interval, double precision, double precision, boolean
) from public;

-- functions/retire_superseded.sql
-- Retires the memory that a new one supersedes; guard_memory() has checked and locked it.
-- Writes one row, or none where it was dead already.
create function hydrator.retire_superseded()
returns trigger
language plpgsql
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  update hydrator.memories m
  set deleted_at = now()
  where m.namespace = new.namespace and m.memory_id = new.supersedes and m.deleted_at is null;
  return null;
end
$function$;

comment on function hydrator.retire_superseded() is
  'Trigger: soft-deletes the memory that a new one supersedes.';
revoke execute on function hydrator.retire_superseded() from public;

-- functions/schema_version.sql
-- The revision of the schema, as its migrations count it. Reads one row.
create function hydrator.schema_version()
returns text
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (select v.version_num from hydrator.alembic_version v);
end
$function$;

comment on function hydrator.schema_version() is
  'The revision of the hydrator schema that is installed.';
revoke execute on function hydrator.schema_version() from public;

-- functions/search_memories.sql
-- Progressive disclosure, first step: what fetch_top_k_relevant() gives, as summaries of one line.
-- The snippet is the content's start, white space folded, at most 120 characters with the ellipsis.
-- Raises and reads what that does.
create function hydrator.search_memories(
  p_query_embedding @extension_schema@.vector,
  p_namespaces text[],
  p_limit integer default 20,
  p_memory_types text[] default null,
  p_min_similarity double precision default null,
  p_metadata jsonb default null,
  p_embedding_model text default null,
  p_query_text text default null,
  p_min_confidence double precision default null,
  p_source_types text[] default null,
  p_neighbours integer default null,
  p_recency_half_life interval default null,
  p_confidence_weight double precision default null,
  p_duplicate_distance double precision default null
)
returns table (
  memory_id uuid,
  heading text,
  memory_type text,
  confidence real,
  snippet text,
  score double precision,
  distance double precision,
  vector_rank integer,
  text_rank integer,
  tokens integer
)
language plpgsql
stable
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
as $function$
begin
  perform hydrator.check_count('limit', p_limit);

  return query
  select
    r.memory_id, r.heading, r.memory_type, r.confidence,
    case
      when char_length(f.folded) <= 120 then f.folded
      else rtrim(left(f.folded, 119)) || '…'
    end,
    r.score, r.distance, r.vector_rank, r.text_rank, r.tokens
  from hydrator.fetch_top_k_relevant(
    p_query_embedding, p_namespaces, p_limit,
    p_memory_types, p_min_similarity, p_metadata, p_embedding_model, p_query_text,
    p_min_confidence, p_source_types,
    p_neighbours, p_recency_half_life, p_confidence_weight, p_duplicate_distance
  ) with ordinality r
  cross join lateral (
    select btrim(regexp_replace(r.content, '[@white_space@]+', ' ', 'g')) as folded
  ) f
  order by r.ordinality;
end
$function$;

comment on function hydrator.search_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) is 'The live memories most relevant to the query as one-line summaries; fetch_memories() gives them in full.';
revoke execute on function hydrator.search_memories(
  @extension_schema@.vector, text[], integer, text[], double precision, jsonb, text, text,
  double precision, text[], integer, interval, double precision, double precision
) from public;

-- functions/secure.sql
-- Turns row security on, as a second wall behind the namespaces that a caller names, or off
-- again. Returns the statements that it ran, or with p_show would run. Safe to repeat; again
-- after an upgrade, it covers what is new. Raises MH011, with the statement that the role may
-- not run.
--
-- Members of the reader may read, and those of the writer also write, what namespace_grants
-- gives to each of them; the admin reads and writes everything. The policies bind the owner too,
-- but not superusers and roles with BYPASSRLS. Off, the three roles lose their rights here;
-- they and the grants stay.
create function hydrator.secure(
  p_on boolean default true,
  p_show boolean default false,
  p_reader text default 'hydrator_reader',
  p_writer text default 'hydrator_writer',
  p_admin text default 'hydrator_admin'
)
returns setof text
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  -- The namespaces as the keys of an object. The planner counts a subscript as free, so no condition
  -- of a query, however harmless it takes its operator for, is tried on a row before this one: what
  -- is tried first can be seen, by what it sets off.
  c_guard constant text := '((select jsonb_object(g, g) from hydrator.granted_namespaces(%s) g))[namespace] is not null';
  -- The same as a condition on an index, so that no scan of one passes over rows of others.
  c_search constant text := 'namespace = any ((select hydrator.granted_namespaces(%s))::text[] collate "C") and ' || c_guard;
  v_owner constant regrole := (select c.relowner from pg_class c where c.oid = 'hydrator.memories'::regclass);
  v_old_roles constant text[] := array(
    select distinct r.rolname
    from pg_policy p
    cross join unnest(p.polroles) m (role)
    join pg_class c on c.oid = p.polrelid
    join pg_roles r on r.oid = m.role
    where c.relnamespace = 'hydrator'::regnamespace and p.polname like 'hydrator\_%'
    order by 1
  );
  v_reads constant text := format(c_search, 'false', 'false');
  v_writes constant text := format(c_search, 'true', 'true');
  v_is_superuser constant boolean := (select r.rolsuper from pg_roles r where r.rolname = current_user);
  v_statements text[] := '{}';
  v_statement text;
  v_name text;
  v_table record;
begin
  if num_nulls(p_on, p_show, p_reader, p_writer, p_admin) > 0
    or p_reader = p_writer or p_writer = p_admin or p_admin = p_reader then
    raise exception 'reader, writer and admin are %, % and %',
        coalesce(quote_literal(p_reader), 'null'), coalesce(quote_literal(p_writer), 'null'),
        coalesce(quote_literal(p_admin), 'null')
      using errcode = 'MH011', hint = 'Name three different roles.';
  end if;
  if p_on and exists (
    select
    from pg_roles a
    join pg_roles r on r.rolname in (p_reader, p_writer) and pg_has_role(r.oid, a.oid, 'member')
    where a.rolname = p_admin
  ) then
    raise exception 'members of "%" are members of "%", which sees everything', p_writer, p_admin
      using errcode = 'MH011', hint = 'Name another admin, or revoke its membership.';
  end if;
  if not pg_has_role(v_owner, 'usage') then
    raise exception 'role "%" does not own the schema hydrator', current_user
      using errcode = 'MH011',
        hint = format('The owner, %s, or a superuser must run: select hydrator.secure();', v_owner);
  end if;

  -- What an earlier run made goes first, since its roles may have been others.
  v_statements := array(
    select format('drop policy %I on %s', p.polname, p.polrelid::regclass)
    from pg_policy p
    join pg_class c on c.oid = p.polrelid
    where c.relnamespace = 'hydrator'::regnamespace and p.polname like 'hydrator\_%'
    order by c.relname, p.polname
  );
  foreach v_name in array v_old_roles loop
    v_statements := v_statements || array[
      format('revoke all on all functions in schema hydrator from %I', v_name),
      format('revoke all on all tables in schema hydrator from %I', v_name),
      format('revoke all on schema hydrator from %I', v_name)
    ];
  end loop;

  if p_on then
    foreach v_name in array array[p_reader, p_writer, p_admin] loop
      if not exists (select from pg_roles r where r.rolname = v_name) then
        v_statements := v_statements || format('create role %I', v_name);
      end if;
    end loop;
    if not exists (
      select
      from pg_auth_members m
      join pg_roles r on r.oid = m.roleid and r.rolname = p_reader
      join pg_roles w on w.oid = m.member and w.rolname = p_writer
    ) then
      v_statements := v_statements || format('grant %I to %I', p_reader, p_writer);
    end if;

    v_statements := v_statements || array[
      format('grant usage on schema hydrator to %I, %I', p_reader, p_admin),
      format('grant select on all tables in schema hydrator to %I, %I', p_reader, p_admin),
      format('grant insert, update on hydrator.memories, hydrator.live_memories to %I, %I', p_writer, p_admin),
      format('grant insert, update, delete on hydrator.namespace_counts, hydrator.namespace_rates to %I, %I', p_writer, p_admin),
      format('grant insert, update, delete on hydrator.namespace_grants to %I', p_admin),
      format('grant delete on hydrator.memories to %I', p_admin)
    ] || array(
      select format('grant execute on function %s to %I, %I', p.oid::regprocedure,
        case when p.provolatile <> 'v' or p.proname = 'act_for' then p_reader else p_writer end, p_admin)
      from pg_proc p
      where p.pronamespace = 'hydrator'::regnamespace
        and p.prorettype <> 'trigger'::regtype
        and p.proname not in ('purge', 'secure', 'tell_plans')
      order by p.proname
    ) || format('grant execute on function hydrator.purge(interval) to %I', p_admin);
  end if;

  for v_table in
    select
      c.oid::regclass as name, c.relname, c.relrowsecurity as is_secured,
      string_agg(format('alter column %I set statistics %s', a.attname, case when p_on then 0 else -1 end), ', '
        order by a.attnum) as statistics
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relnamespace = 'hydrator'::regnamespace
      and c.relkind in ('r', 'p')
      and exists (select from pg_attribute n where n.attrelid = c.oid and n.attname = 'namespace')
    group by c.oid
    order by c.relname
  loop
    if not p_on then
      if v_table.is_secured then
        v_statements := v_statements || array[
          format('alter table %s disable row level security, no force row level security', v_table.name),
          format('alter table %s %s', v_table.name, v_table.statistics)
        ];
      end if;
      continue;
    end if;

    if v_table.relname = 'namespace_grants' then
      v_statements := v_statements || format(
        'create policy hydrator_read on %s for select to %I'
        ' using (role = current_user and ((select jsonb_build_object(current_user, true)))[role] is not null)',
        v_table.name, p_reader);
    else
      v_statements := v_statements || array[
        format('create policy hydrator_read on %s for select to %I using (%s)', v_table.name, p_reader, v_reads),
        format('create policy hydrator_insert on %s for insert to %I with check (%s)',
          v_table.name, p_writer, format(c_guard, 'true')),
        format('create policy hydrator_update on %s for update to %I using (%s) with check (%s)',
          v_table.name, p_writer, v_writes, format(c_guard, 'true')),
        format('create policy hydrator_delete on %s for delete to %I using (%s)', v_table.name, p_writer, v_writes)
      ];
    end if;
    -- Estimates, which anyone may ask for, would tell which values others store: no statistics of them.
    v_statements := v_statements || array[
      format('create policy hydrator_admin on %s to %I using (true)', v_table.name, p_admin),
      format('alter table %s enable row level security, force row level security', v_table.name),
      format('alter table %s %s', v_table.name, v_table.statistics)
    ];
    if current_setting('server_version_num')::integer >= 180000 then
      v_statements := v_statements || format(
        'select pg_clear_attribute_stats(''hydrator'', %L, a.attname, false) from pg_attribute a'
        ' where a.attrelid = %L::regclass and a.attnum > 0 and not a.attisdropped', v_table.relname, v_table.name);
    elsif v_is_superuser then
      v_statements := v_statements || format('delete from pg_statistic where starelid = %L::regclass', v_table.name);
    elsif exists (select from pg_stats s where s.schemaname = 'hydrator' and s.tablename = v_table.relname) then
      raise warning 'statistics of % stay, and so in what EXPLAIN estimates', v_table.name
        using hint = format('A superuser should run: delete from pg_statistic where starelid = %L::regclass;', v_table.name);
    end if;
  end loop;

  foreach v_statement in array v_statements loop
    if not p_show then
      begin
        execute v_statement;
      exception
        when insufficient_privilege then
          raise exception 'role "%" may not run: %', current_user, v_statement
            using errcode = 'MH011', hint = format('A superuser must run it, or: select hydrator.secure(%s, false, %L, %L, %L);',
              p_on, p_reader, p_writer, p_admin);
      end;
    end if;
    return next v_statement;
  end loop;
end
$function$;

comment on function hydrator.secure(boolean, boolean, text, text, text) is
  'Turns row security on, or off again; returns the statements, and with p_show runs none of them.';
revoke execute on function hydrator.secure(boolean, boolean, text, text, text) from public;

-- functions/setting.sql
-- A setting of ours, hydrator.<name>, as `alter database … set`, `alter role … set` or `set`
-- left it, or its default. Raises MH003 where it is no whole number, or negative. Reads nothing.
create function hydrator.setting(p_name text)
returns integer
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_value constant text := nullif(current_setting('hydrator.' || p_name, true), '');
begin
  if v_value is null then
    return case p_name
      when 'exact_max_rows' then 1000
      when 'bits_max_rows' then 12000
      when 'rerank_factor' then @rerank_factor@
      when 'hnsw_min_percent' then 5
      when 'ef_search' then 35
      when 'max_content_chars' then 1000000
      when 'max_metadata_bytes' then 65536
      when 'max_memories_per_hour' then 0
    end;
  end if;
  if v_value !~ '^[0-9]{1,9}$' then
    raise exception 'hydrator.% is %', p_name, quote_literal(v_value)
      using errcode = 'MH003', hint = format('hydrator.%s is a whole number, 0 or more.', p_name);
  end if;
  return v_value;
end
$function$;

comment on function hydrator.setting(text) is
  'The value of a setting hydrator.<name>, or its default.';
revoke execute on function hydrator.setting(text) from public;

-- functions/similarity.sql
-- The similarity that a distance of this installation stands for: 1 - distance for
-- cosine, -distance for the inner product, 1 / (1 + distance) for L2. Reads nothing.
create function hydrator.similarity(p_distance double precision)
returns double precision
language plpgsql
immutable strict parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return @similarity(p_distance)@;
end
$function$;

comment on function hydrator.similarity(double precision) is
  'The similarity a distance of this installation stands for (@distance@).';
revoke execute on function hydrator.similarity(double precision) from public;

-- functions/split_words.sql
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

-- functions/survey_namespaces.sql
-- What must be known of the namespaces before their memories are ranked, in one statement: how many
-- are live (the lasting ones by the counts that triggers keep, those that will expire one by one, in
-- memories_expiring_idx), whether there are pinned ones, and whether there may be vectors of another
-- model than p_embedding_model (null: of any), which check_embedding_model() then tells. Only the
-- number rests on the counts. Reads, of each namespace, a row for each backend that wrote, the
-- entries of what will expire, and one of each of two other indexes, at the same cost for any number
-- of lasting memories.
create function hydrator.survey_namespaces(
  p_namespaces text[],
  p_embedding_model text,
  out live_rows bigint,
  out has_pinned boolean,
  out has_other_models boolean
)
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $function$
declare
  -- Not in the condition: row security lets an index take values and parameters alone.
  v_after constant text := coalesce(p_embedding_model, '');
begin
  select
    (
      select greatest(sum(c.lasting), 0)
      from hydrator.namespace_counts c
      where c.namespace = any (p_namespaces collate "C")
    ) + (
      select count(*)
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.expires_at is not null
    ),
    exists (
      select
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.pinned
    ),
    exists (
      select
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.embedding is not null
        and m.embedding_model > v_after collate "C"
    ) or exists (
      select
      from hydrator.live_memories m
      where m.namespace = any (p_namespaces collate "C")
        and m.embedding is not null
        and m.embedding_model < p_embedding_model collate "C"
    )
  into live_rows, has_pinned, has_other_models;
end
$function$;

comment on function hydrator.survey_namespaces(text[], text) is
  'The number of live memories, and whether some are pinned or may have vectors of another model.';
revoke execute on function hydrator.survey_namespaces(text[], text) from public;

-- functions/tell_plans.sql
-- Until the transaction ends, the plans of all statements, also of those inside the calls, are
-- told to this session as notices, as `explain (analyze, buffers)` writes them:
--
--   begin;
--   select hydrator.tell_plans();
--   select * from hydrator.hydrate_session(…);
--   rollback;
--
-- For the DBA who asks why a call took what it took; `explain` shows it as one function scan.
-- Raises insufficient_privilege (42501) for a role that may neither load auto_explain nor set its
-- parameters; the hint says how a superuser lets it. Reads nothing.
create function hydrator.tell_plans()
returns void
language plpgsql
volatile
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  -- As notices, they go to this session, and not into the server's log. The last one is the
  -- switch: from there on, statements are told.
  v_parameters constant text[] := array[
    'log_level', 'log_format', 'log_nested_statements', 'log_analyze', 'log_buffers', 'log_timing',
    'log_verbose', 'log_triggers', 'sample_rate', 'log_min_duration'
  ];
  v_values constant text[] := array['notice', 'text', 'on', 'on', 'on', 'on', 'off', 'off', '1', '0'];
begin
  if current_setting('auto_explain.log_nested_statements', true) is null then
    load 'auto_explain';
  end if;
  perform set_config('client_min_messages', 'notice', true);
  for i in 1 .. cardinality(v_parameters) loop
    perform set_config('auto_explain.' || v_parameters[i], v_values[i], true);
  end loop;
exception
  when insufficient_privilege or undefined_file then
    raise exception 'the plans cannot be told: %', sqlerrm
      using errcode = sqlstate,
        hint = format(
          'Ask as a superuser, or have one run, for this role''s next sessions: '
          'alter role %1$I set session_preload_libraries = ''auto_explain''; '
          'grant set on parameter auto_explain.%2$s to %1$I;',
          current_user, array_to_string(v_parameters, ', auto_explain.')
        );
end
$function$;

comment on function hydrator.tell_plans() is
  'Until the transaction ends, tells the plans of all statements, also inside the calls, as notices.';
revoke execute on function hydrator.tell_plans() from public;

-- functions/word_keys.sql
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

-- tables/memories.sql
-- The memories. namespace leads every key, so that the table can be distributed by it, and
-- compares byte by byte, whatever the database's collation or the caller's. What a memory
-- may hold is checked by guard_memory() for every writer.
create table hydrator.memories (
  -- What is read of many rows stands first, and of that what every row has, so that little is
  -- stepped over.
  memory_id uuid not null default gen_random_uuid(),
  confidence real not null default 1,
  -- Stored, so that a budget never has to detoast a content.
  index_tokens integer not null
    generated always as (hydrator.estimate_tokens(heading)) stored,
  content_tokens integer not null
    generated always as (coalesce(token_count, hydrator.estimate_tokens(heading || E'\n' || content))) stored,
  pinned boolean not null default false,
  expires_at timestamptz,
  deleted_at timestamptz,
  namespace text collate "C" not null,
  embedding @extension_schema@.@vector_type@(@dimensions@),
  memory_type text not null default 'semantic',
  source_type text not null default 'agent',
  metadata jsonb not null default '{}',
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  supersedes uuid,
  -- Of those that remember() wrote, so that it knows them again.
  digest uuid,
  embedding_model text collate "C",
  token_count integer,
  -- Of a memory in quarantine, which is deleted until it is released; deleted_at says since when.
  quarantine_reason text,
  heading text not null,
  content text not null,
  -- Stored, so that the index is put together, not rendered, at each call.
  index_entry json not null
    generated always as (hydrator.render_entry(memory_id, heading, memory_type, confidence)) stored,
  -- The signs of the embedding, for the candidate scan of memories_bits_idx.
  embedding_bits bit(@dimensions@)
    generated always as (@extension_schema@.binary_quantize(embedding)::bit(@dimensions@)) stored,
  -- Stored, so that a ranking by text never reads one.
  words bigint[] not null
    generated always as (hydrator.word_keys(namespace, memory_id, heading, content)) stored,
  constraint memories_pkey primary key (namespace, memory_id),
  -- A purged predecessor leaves its successor without one.
  constraint memories_supersedes_fkey foreign key (namespace, supersedes)
    references hydrator.memories (namespace, memory_id) on delete set null (supersedes)
);

-- Where a row has room for them, embeddings are stored in it: one that is TOASTed costs a
-- look-up for every distance. The heading stays beside it; contents move out instead, unless they
-- are so short that a page has room for them without holding fewer rows.
alter table hydrator.memories
  set (toast_tuple_target = @toast_tuple_target@),
  alter column embedding set storage @embedding_storage@,
  alter column embedding_bits set storage @embedding_storage@,
  alter column words set storage external,
  alter column heading set storage main,
  alter column index_entry set storage main;

-- A memory is superseded at most once.
create unique index memories_supersedes_key on hydrator.memories (namespace, supersedes)
  where supersedes is not null;

-- The compact index, as an index: its order, and all that it shows.
create index memories_live_idx on hydrator.memories (namespace, confidence desc, memory_id)
  include (index_entry, index_tokens, expires_at)
  where deleted_at is null;

-- What survey_namespaces() has to count one by one.
create index memories_expiring_idx on hydrator.memories (namespace, expires_at)
  where deleted_at is null and expires_at is not null;

-- The standing memories, few among many.
create index memories_pinned_idx on hydrator.memories (namespace, confidence desc, memory_id)
  where deleted_at is null and pinned;

-- What an exact ranking reads: the live rows alone, in the order in which they are stored. Two
-- probes tell whether a namespace holds vectors of another model. Its keys repeat, so that an entry
-- costs little more than a pointer; another column, even an included one, would forgo that.
create index memories_rankable_idx on hydrator.memories (namespace, embedding_model)
  where deleted_at is null and embedding is not null;

-- The words of the live memories, each namespace's apart: see word_keys() and rank_hybrid(). Costs
-- about as many bytes as the text has characters, and a quarter of the time of a write with all
-- indexes; no pending list, which every search would have to read through.
create index memories_words_idx on hydrator.memories using gin (words)
  with (fastupdate = off)
  where deleted_at is null;
-- remember() writes the same words once. One in quarantine keeps its claim, so that what was taken
-- out does not come back by being said again.
create unique index memories_digest_key on hydrator.memories (namespace, digest)
  where digest is not null and (deleted_at is null or quarantine_reason is not null);

create index memories_quarantined_idx on hydrator.memories (namespace, memory_id)
  where quarantine_reason is not null;

create trigger guard_memory
  before insert or update on hydrator.memories
  for each row execute function hydrator.guard_memory();

-- After, so that a row that was not inserted in the end (on conflict) retires nothing.
create trigger retire_superseded
  after insert on hydrator.memories
  for each row when (new.supersedes is not null)
  execute function hydrator.retire_superseded();

create trigger limit_rate
  after insert on hydrator.memories
  referencing new table as new_rows
  for each statement execute function hydrator.limit_rate();

-- A statement at a time, so that a bulk load counts once.
create trigger count_inserted
  after insert on hydrator.memories
  referencing new table as new_rows
  for each statement execute function hydrator.count_memories();
create trigger count_updated
  after update on hydrator.memories
  referencing old table as old_rows new table as new_rows
  for each statement execute function hydrator.count_memories();
create trigger count_deleted
  after delete on hydrator.memories
  referencing old table as old_rows
  for each statement execute function hydrator.count_memories();
create trigger count_truncated
  after truncate on hydrator.memories
  for each statement execute function hydrator.count_memories();

comment on table hydrator.memories is
  'Memories of agents. Read the live ones through hydrator.live_memories; write through hydrator.remember() and hydrator.forget().';
comment on column hydrator.memories.namespace is 'Whose memory it is; 1 to 255 characters, matched exactly, never as a prefix.';
comment on column hydrator.memories.memory_type is 'A lower-case word: episodic, semantic, procedural, working, lesson or another.';
comment on column hydrator.memories.heading is 'The line of the compact index: one line of 1 to 200 characters.';
comment on column hydrator.memories.confidence is 'From 0 to 1; the compact index shows the highest first.';
comment on column hydrator.memories.source_type is 'Who observed it.';
comment on column hydrator.memories.supersedes is 'The memory of the same namespace that this one replaced.';
comment on column hydrator.memories.pinned is 'A standing memory: a candidate of every hydration, before the ranked ones.';
comment on column hydrator.memories.embedding_bits is 'The signs of the embedding, made by the database.';
comment on column hydrator.memories.embedding_model is 'The model that made the embedding; vectors of two models are never compared in silence.';
comment on column hydrator.memories.token_count is 'The caller''s exact count of heading and content; null means the estimate.';
comment on column hydrator.memories.digest is
  'hydrator.memory_digest() of heading and content, where remember() wrote them; null takes no part in its search for duplicates.';
comment on column hydrator.memories.quarantine_reason is
  'Why the memory was taken out by hydrator.quarantine(); hydrator.purge() passes over it until it is null.';
comment on column hydrator.memories.index_entry is 'The memory''s entry of the compact index as JSON, made by the database.';
comment on column hydrator.memories.words is 'The words of heading and content as numbers, made by the database; see hydrator.word_keys().';
comment on column hydrator.memories.index_tokens is 'What the memory costs in the compact index.';
comment on column hydrator.memories.content_tokens is 'What the memory costs in full.';

-- tables/live_memories.sql
-- Liveness, in its one place. Every call reads and retires through this view.
create view hydrator.live_memories with (security_invoker = true) as
select
  m.namespace, m.memory_id, m.memory_type, m.heading, m.content, m.confidence, m.source_type,
  m.supersedes, m.expires_at, m.deleted_at, m.created_at, m.updated_at, m.pinned, m.metadata,
  m.embedding, m.embedding_bits, m.embedding_model, m.token_count, m.index_entry, m.index_tokens,
  m.content_tokens, m.words, m.digest, m.quarantine_reason
from hydrator.memories m
where m.deleted_at is null
  and (m.expires_at is null or m.expires_at > now());

comment on view hydrator.live_memories is
  'The memories that are neither deleted, superseded, in quarantine nor expired: what the calls see.';
