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
