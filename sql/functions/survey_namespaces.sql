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
