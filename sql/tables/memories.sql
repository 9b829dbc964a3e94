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
