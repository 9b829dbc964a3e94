-- Which database role may read, and write, which namespaces, once hydrator.secure() has turned
-- row security on. A grant is of the role itself, not of the roles that are members of it.
create table hydrator.namespace_grants (
  role text collate "C" not null,
  namespace text collate "C",
  can_write boolean not null default false,
  constraint namespace_grants_key unique nulls not distinct (role, namespace)
);

comment on table hydrator.namespace_grants is
  'Which role may read and write which namespaces, once hydrator.secure() has turned row security on.';
comment on column hydrator.namespace_grants.role is 'The role, as current_user names it.';
comment on column hydrator.namespace_grants.namespace is
  'A namespace it may read; null: those that its transaction names by hydrator.act_for(), and none before.';
comment on column hydrator.namespace_grants.can_write is 'Whether it may write there too.';
