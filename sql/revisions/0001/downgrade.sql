-- Back to an empty schema. The extension goes too if installing made it and nothing uses it.
do $uninstall$
declare
  v_extension_created constant boolean := (select i.extension_created from hydrator.installed i);
begin
  -- The roles' rights on the schema, which may stay, are taken back, and nothing hides.
  perform hydrator.secure(p_on => false);

  drop view hydrator.live_memories;
  drop table hydrator.memories;
  drop function hydrator.act_for;
  drop function hydrator.check_count;
  drop function hydrator.check_embedding;
  drop function hydrator.check_embedding_model;
  drop function hydrator.check_floor;
  drop function hydrator.check_namespaces;
  drop function hydrator.choose_ranking;
  drop function hydrator.compact_index;
  drop function hydrator.count_live;
  drop function hydrator.count_memories;
  drop function hydrator.estimate_tokens;
  drop function hydrator.fetch_memories;
  drop function hydrator.fetch_top_k_relevant;
  drop function hydrator.forget;
  drop function hydrator.granted_namespaces;
  drop function hydrator.guard_memory;
  drop function hydrator.hash_words;
  drop function hydrator.hydrate_session;
  drop function hydrator.index_json;
  drop function hydrator.installation;
  drop function hydrator.lend_worth;
  drop function hydrator.limit_rate;
  drop function hydrator.list_quarantined;
  drop function hydrator.memory_digest;
  drop function hydrator.near_duplicates;
  drop function hydrator.purge;
  drop function hydrator.quarantine;
  drop function hydrator.rank_hybrid;
  drop function hydrator.rank_memories;
  drop function hydrator.release;
  drop function hydrator.remember;
  drop function hydrator.render_entry;
  drop function hydrator.rerank_memories;
  drop function hydrator.retire_superseded;
  drop function hydrator.schema_version;
  drop function hydrator.search_memories;
  drop function hydrator.secure;
  drop function hydrator.setting;
  drop function hydrator.similarity;
  drop function hydrator.split_words;
  drop function hydrator.survey_namespaces;
  drop function hydrator.tell_plans;
  drop function hydrator.word_keys;
  drop table hydrator.namespace_rates;
  drop table hydrator.namespace_grants;
  drop table hydrator.namespace_counts;
  drop table hydrator.installed;

  if v_extension_created then
    begin
      drop extension vector;
    exception
      when dependent_objects_still_exist then
        raise notice 'the extension vector stays: other objects use it';
      when insufficient_privilege then
        raise notice 'the extension vector stays: role "%" does not own it', current_user;
    end;
  end if;
end
$uninstall$;
