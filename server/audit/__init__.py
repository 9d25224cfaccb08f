"""`tailrace audit`: files of replies, a server asked for logits, and the report.

In reading order: `joined` (streams as replies), `parameters` (what of a body decides tokens),
`records` (a file's choices), `server_logits` (a server asked over HTTP), `verdict` (what follows
from the derived tokens), `report` (its table and JSON),
`command` (the flags, and one audit). The derivation itself is `engine.audit`.
"""
