"""`tailrace conformance`: what any OpenAI-compatible server should do, asked over HTTP.

It knows of servers only what HTTP says. In reading order: `subject` (the server, and replies read
alike whatever their dialect), `result` (a line of the report, and what ends a check early),
`statistics` (tests of counts, and their odds of a false alarm), the checks (`shapes`, `logprobs`,
`draws`, `filters`, `streams`, `grammars`, `errors`), `run` (all of them in order), `report` (table,
JSON, HTML), `command` (the flags).
"""
