-- For rankings over some thousands of rows: the signs of each embedding beside the key, so that
-- candidates are found in the index alone, filtered first, however small the tenant's share of
-- the table is. Costs dimensions/8 + 60 bytes a memory.
create index concurrently memories_bits_idx on hydrator.memories (namespace, memory_id)
  include (embedding_bits, memory_type, expires_at, pinned)
  where deleted_at is null;
