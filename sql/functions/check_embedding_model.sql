-- Refuses to compare vectors of two models: where the live vectors of the namespaces were
-- made by another model than p_embedding_model, or (null: the query says nothing of its
-- model) by two models. Stored vectors without a model pass. Raises MH009. A few probes of
-- memories_embedding_model_idx.
create function hydrator.check_embedding_model(p_embedding_model text, p_namespaces text[])
returns void
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_model text := p_embedding_model;
  v_namespace text;
  v_other text;
begin
  if v_model is null then
    select m.embedding_model into v_model
    from hydrator.live_memories m
    where m.namespace = any (p_namespaces collate "C")
      and m.embedding is not null
      and m.embedding_model is not null
    limit 1;
  end if;

  -- Below or above, not <>: only an ordered comparison can probe the index.
  select other.namespace, other.embedding_model
  into v_namespace, v_other
  from (
    (select m.namespace, m.embedding_model
     from hydrator.live_memories m
     where m.namespace = any (p_namespaces collate "C")
       and m.embedding is not null
       and m.embedding_model < v_model collate "C"
     limit 1)
    union all
    (select m.namespace, m.embedding_model
     from hydrator.live_memories m
     where m.namespace = any (p_namespaces collate "C")
       and m.embedding is not null
       and m.embedding_model > v_model collate "C"
     limit 1)
  ) other
  limit 1;

  if found then
    raise exception 'namespace "%" holds vectors of the model "%", and % of "%"',
        v_namespace, v_other,
        case when p_embedding_model is null then 'there are others' else 'this one is' end, v_model
      using errcode = 'MH009',
        hint = 'Vectors of two models cannot be compared: embed with the stored model, or embed the namespace anew.';
  end if;
end
$function$;

comment on function hydrator.check_embedding_model(text, text[]) is
  'Raises MH009 where live vectors of the namespaces were made by another model, or by two.';
revoke execute on function hydrator.check_embedding_model(text, text[]) from public;
