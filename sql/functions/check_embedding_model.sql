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
