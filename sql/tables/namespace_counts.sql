-- How many memories of a namespace are not deleted and never expire, so that a count costs the
-- same at any size. A row for each backend that has written, so that writers never wait for
-- one another; a sum over them is the count, in whatever snapshot it is read.
create table hydrator.namespace_counts (
  namespace text collate "C" not null,
  writer integer not null,
  lasting bigint not null,
  constraint namespace_counts_pkey primary key (namespace, writer)
)
-- Rows are updated in place, again and again.
with (fillfactor = 50);

comment on table hydrator.namespace_counts is
  'Counts of the memories that never expire, kept by triggers; read through hydrator.count_live().';
comment on column hydrator.namespace_counts.writer is 'The process id of the backend that counted.';
