-- A setting of ours, hydrator.<name>, as `alter database … set`, `alter role … set` or `set`
-- left it, or its default. Raises MH003 where it is no whole number, or negative. Reads nothing.
create function hydrator.setting(p_name text)
returns integer
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_value constant text := nullif(current_setting('hydrator.' || p_name, true), '');
begin
  if v_value is null then
    return case p_name
      when 'exact_max_rows' then 1000
      when 'bits_max_rows' then 12000
      when 'rerank_factor' then @rerank_factor@
      when 'hnsw_min_percent' then 5
      when 'ef_search' then 35
      when 'max_content_chars' then 1000000
      when 'max_metadata_bytes' then 65536
      when 'max_memories_per_hour' then 0
    end;
  end if;
  if v_value !~ '^[0-9]{1,9}$' then
    raise exception 'hydrator.% is %', p_name, quote_literal(v_value)
      using errcode = 'MH003', hint = format('hydrator.%s is a whole number, 0 or more.', p_name);
  end if;
  return v_value;
end
$function$;

comment on function hydrator.setting(text) is
  'The value of a setting hydrator.<name>, or its default.';
revoke execute on function hydrator.setting(text) from public;
