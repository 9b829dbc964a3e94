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
