"""Replies taken apart: what is reasoning, what is content, what is a tool call.

How a model writes these is declared as data, one page a format in `formats/`; one machine reads
them all. In the order to read: `format` (what a page says), `formats/`, `recognise` (which page a
model's template asks for), `graph` (a page made ready for a tokenizer), `machine` and the readers
of bodies (`body`, `json_calls`, `python_calls`, `fields`), `tokens` (the part of every token),
`reader` (pieces of a choice in, events and tokens with parts out), `message` (the events as a
message), and `syntax` (what grammars are made of).

Three rules hold for every format:

- A marker is never shown. Where it is a special token of the model it is recognised by its id, so
  that the same characters in other tokens are text; else it is recognised in the text.
- A body is a call from where its name and the beginning of its arguments were read. What breaks
  its format before is content, from the body's first character on. A call that breaks later, or is
  cut off, keeps its arguments as far as they came, which are then no JSON; brackets and white space
  after it are markup, and other text is content.
- What is found depends on the tokens alone, not on how they were cut into chunks.
"""
