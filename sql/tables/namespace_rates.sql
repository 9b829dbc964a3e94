-- How many memories each backend wrote into a namespace in the current hour: kept only where the
-- setting hydrator.max_memories_per_hour asks for it. A row a backend, so that none waits.
create table hydrator.namespace_rates (
  namespace text collate "C" not null,
  writer integer not null,
  hour timestamptz not null,
  written bigint not null,
  constraint namespace_rates_pkey primary key (namespace, writer)
)
with (fillfactor = 50);

comment on table hydrator.namespace_rates is
  'Memories written in the current hour, where hydrator.max_memories_per_hour is set; kept by a trigger.';
comment on column hydrator.namespace_rates.writer is 'The process id of the backend that wrote.';
