-- What was settled when the schema was installed: one row, read through
-- hydrator.installation(). The functions carry the same values in their bodies,
-- because a search path or a look-up at call time could be turned against them.
create table hydrator.installed (
  singleton boolean primary key default true check (singleton),
  dimensions integer not null,
  vector_type text not null,
  distance text not null,
  extension_schema text not null,
  text_search_config text not null,
  extension_created boolean not null
);

comment on table hydrator.installed is
  'One row: the settings this installation was made with. Changing it changes nothing; see hydrator.installation().';

do $install$
declare
  v_version text;
  v_schema regnamespace;
  v_created boolean := false;
begin
  if current_setting('server_version_num')::integer < 150000 then
    raise exception 'hydrator needs PostgreSQL 15 or later, this server is %', current_setting('server_version')
      using errcode = 'MH011';
  end if;
  if current_setting('server_encoding') <> 'UTF8' then
    raise exception 'hydrator needs a database encoded in UTF8, this one is %', current_setting('server_encoding')
      using errcode = 'MH011',
        hint = 'create database … encoding ''UTF8'' template template0;';
  end if;

  if not exists (select from pg_catalog.pg_extension where extname = 'vector') then
    if to_regnamespace($q$@extension_schema@$q$) is null then
      raise exception 'there is no schema "%" for the extension pgvector', @extension_schema_name@
        using errcode = 'MH011', hint = format('Run first: create schema %I;', @extension_schema_name@::text);
    end if;
    begin
      create extension vector with schema @extension_schema@;
      v_created := true;
    exception
      when insufficient_privilege then
        raise exception 'the extension pgvector is not in database "%", and role "%" may not create it',
            current_database(), current_user
          using errcode = 'MH011',
            hint = format('A superuser must run, in database %I: create extension vector with schema %I;',
              current_database(), @extension_schema_name@::text);
      when undefined_file or feature_not_supported then
        raise exception 'the extension pgvector is not installed on this server'
          using errcode = 'MH011',
            hint = format('Install pgvector 0.7 or later on the server''s machine, then a superuser must run, in database %I: create extension vector with schema %I;',
              current_database(), @extension_schema_name@::text);
    end;
  end if;

  select e.extversion, e.extnamespace
  into v_version, v_schema
  from pg_catalog.pg_extension e
  where e.extname = 'vector';

  if v_schema is distinct from to_regnamespace($q$@extension_schema@$q$) then
    raise exception 'the extension vector lives in schema %, not in %', v_schema, $q$@extension_schema@$q$
      using errcode = 'MH011',
        hint = format('Install with the extension schema %s.', v_schema);
  end if;
  if string_to_array(regexp_replace(v_version, '[^0-9.].*$', ''), '.')::integer[] < array[0, 7] then
    raise exception 'hydrator needs pgvector 0.7 or later, this database has %', v_version
      using errcode = 'MH011',
        hint = 'Its owner must run: alter extension vector update;';
  end if;

  begin
    perform @text_search_config@::regconfig;
  exception
    when undefined_object or invalid_schema_name or syntax_error or invalid_name then
      raise exception 'there is no text search configuration %', @text_search_config@
        using errcode = 'MH011',
          hint = 'select cfgname from pg_ts_config; one outside pg_catalog is named with its schema.';
  end;

  insert into hydrator.installed (
    dimensions, vector_type, distance, extension_schema, text_search_config, extension_created
  )
  select @dimensions@, '@vector_type@', '@distance@', n.nspname, @text_search_config@, v_created
  from pg_catalog.pg_namespace n
  where n.oid = v_schema;
end
$install$;
