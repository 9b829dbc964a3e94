-- Gives a vector in the type that is stored here, and refuses one that this installation cannot
-- rank: null (MH002), of another dimension (MH001), or of a length at which float4 arithmetic
-- gives NaN or infinity instead of a distance (MH002): zero, below 1e-18 or above 1e18. p_name
-- says which vector it is. Reads nothing.
create function hydrator.check_embedding(p_name text, p_embedding @extension_schema@.vector)
returns @extension_schema@.@vector_type@
language plpgsql
immutable parallel safe
security invoker
set search_path = pg_catalog, pg_temp
as $function$
declare
  v_stored constant @extension_schema@.@vector_type@ :=
    case when @extension_schema@.vector_dims(p_embedding) = @dimensions@ then p_embedding::@extension_schema@.@vector_type@ end;
  v_square constant double precision := -(v_stored operator(@extension_schema@.<#>) v_stored);
begin
  if v_square between 1e-36 and 1e36 then
    return v_stored;
  end if;

  if p_embedding is null then
    raise exception '% is null', p_name
      using errcode = 'MH002',
        hint = 'Embed the text first; memories without an embedding stay in the index and are never ranked.';
  elsif @extension_schema@.vector_dims(p_embedding) <> @dimensions@ then
    raise exception '% has % dimensions, this installation holds %',
        p_name, @extension_schema@.vector_dims(p_embedding), @dimensions@
      using errcode = 'MH001',
        hint = 'Embed with the model the memories were embedded with; hydrator.installation() tells the dimensions.';
  elsif v_square = 0 then
    raise exception '% is a zero vector', p_name
      using errcode = 'MH002',
        hint = 'A zero vector has no direction and no distance; models give one for empty text.';
  end if;
  raise exception '% has the length %, outside 1e-18 to 1e18', p_name, sqrt(v_square)
    using errcode = 'MH002',
      hint = 'Scale the vector; at such lengths its distances overflow.';
end
$function$;

comment on function hydrator.check_embedding(text, @extension_schema@.vector) is
  'A vector in the stored type; raises MH001 or MH002 where it cannot be ranked here: wrong dimension, null, zero, out of range.';
revoke execute on function hydrator.check_embedding(text, @extension_schema@.vector) from public;
