-- Refuses to bring a vector of one model together with live vectors of another.
-- Null as the model says nothing and passes, as do stored vectors without a model.
-- Raises MH009. Two probes of memories_embedding_model_idx a namespace.
create function hydrator.check_embedding_model(p_embedding_model text, p_namespaces text[])
returns void
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_namespace text;
  v_other text;
begin
  if p_embedding_model is null then
    return;
  end if;

  -- Below or above, not <>: only an ordered comparison can probe the index.
  select other.namespace, other.embedding_model
  into v_namespace, v_other
  from (
    (select m.namespace, m.embedding_model
     from hydrator.live_memories m
     where m.namespace = any (p_namespaces)
       and m.embedding is not null
       and m.embedding_model < p_embedding_model
     limit 1)
    union all
    (select m.namespace, m.embedding_model
     from hydrator.live_memories m
     where m.namespace = any (p_namespaces)
       and m.embedding is not null
       and m.embedding_model > p_embedding_model
     limit 1)
  ) other
  limit 1;

  if found then
    raise exception 'namespace "%" holds vectors of the model "%", and this one is of "%"',
        v_namespace, v_other, p_embedding_model
      using errcode = 'MH009',
        hint = 'Vectors of two models cannot be compared: embed with the stored model, or embed the namespace anew.';
  end if;
end
$function$;

comment on function hydrator.check_embedding_model(text, text[]) is
  'Raises MH009 where live vectors of the namespaces were made by another model.';
revoke execute on function hydrator.check_embedding_model(text, text[]) from public;
