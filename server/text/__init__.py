"""Texts and token ids: encoding, decoding as tokens come, stop strings, values as reply text.

In reading order: `tokenizer` (texts to ids and back), `token_bytes` (which bytes each id adds to a
text), `detokenize` (text of a growing list of ids), `stop` (stop strings in a growing text),
`json_fragments` (ids and values as pieces of JSON), `packed` (arrays as base64).
"""
