-- For rankings over tens of thousands of rows and more that are a fair share of the table. Costs
-- more than the embeddings themselves, and most of the time of a write. Built with twice pgvector's
-- care: with its default, whole clusters were not found in a tenth of 137,000 clustered vectors
-- (recall@10 0.955 while visiting 100), with this one all were, visiting 32.
create index concurrently memories_hnsw_idx on hydrator.memories
  using hnsw (embedding @extension_schema@.@operator_class@)
  with (ef_construction = 128)
  where deleted_at is null;
