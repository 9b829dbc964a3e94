-- For rankings over tens of thousands of rows and more that are a fair share of the table. Costs
-- more than the embeddings themselves, and most of the time of a write.
create index concurrently memories_hnsw_idx on hydrator.memories
  using hnsw (embedding @extension_schema@.@operator_class@)
  where deleted_at is null;
