-- Which way a ranking over so many live rows is made: exact, bits (a candidate scan over the
-- signs of the embeddings in memories_bits_idx, then exact distances) or hnsw (an iterative
-- scan of memories_hnsw_idx). Small sets are ranked exactly; larger ones by what indexes there
-- are, HNSW only where the rows are a fair share of the table, since it filters last. Filters
-- on metadata, confidence and source are not in the bits index. Reads the catalog.
create function hydrator.choose_ranking(p_live_rows bigint, p_by_metadata boolean default false)
returns text
language plpgsql
stable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_bits boolean;
  v_hnsw boolean;
  v_table_rows real;
begin
  if p_live_rows <= hydrator.setting('exact_max_rows') then
    return 'exact';
  end if;

  select
    bool_or(i.indexrelid = to_regclass('hydrator.memories_bits_idx')) and not p_by_metadata,
    bool_or(i.indexrelid = to_regclass('hydrator.memories_hnsw_idx'))
  into v_bits, v_hnsw
  from pg_index i
  where i.indexrelid in (to_regclass('hydrator.memories_bits_idx'), to_regclass('hydrator.memories_hnsw_idx'))
    and i.indisvalid;

  if v_bits and p_live_rows <= hydrator.setting('bits_max_rows') then
    return 'bits';
  end if;
  if v_hnsw then
    select c.reltuples into v_table_rows from pg_class c where c.oid = 'hydrator.memories'::regclass;
    if p_live_rows * 100.0 >= v_table_rows * hydrator.setting('hnsw_min_percent') then
      return 'hnsw';
    end if;
  end if;
  return case when v_bits then 'bits' else 'exact' end;
end
$function$;

comment on function hydrator.choose_ranking(bigint, boolean) is
  'The way a ranking over so many live rows is made: exact, bits or hnsw.';
revoke execute on function hydrator.choose_ranking(bigint, boolean) from public;
