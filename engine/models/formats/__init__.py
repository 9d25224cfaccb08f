"""Weight formats: each reads, cuts for ranks, joins, multiplies and serves experts.

`part` is the contract; `dense`, `fp8`, `fp8_blocks` and `int4` are the formats, `separate` is
several at once. `config` reads what a checkpoint says of its modules into a `scheme`; `modules` and
`quantized_modules` read their tensors, as `unpack`, `mxfp4` and `ordered` know each tool's layout,
and `dummy` makes random ones. `reader` is what layers read through.
"""
