"""The client of `tailrace bench`: it loads any OpenAI-compatible server and says what came of it.

In reading order: `workloads` (what is sent), `target` (where to), `connection`, `events` and
`exchange` (one request and its reply), `load` and `processes` (many), `measure` (all passes),
`figures` and `results` (what is kept), `table`, `charts`, `report`, `compare` and `display` (what
is shown).
"""
