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
