-- The similarity that a distance of this installation stands for: 1 - distance for
-- cosine, -distance for the inner product, 1 / (1 + distance) for L2. Reads nothing.
create function hydrator.similarity(p_distance double precision)
returns double precision
language plpgsql
immutable strict parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
begin
  return @similarity(p_distance)@;
end
$function$;

comment on function hydrator.similarity(double precision) is
  'The similarity a distance of this installation stands for (@distance@).';
revoke execute on function hydrator.similarity(double precision) from public;
