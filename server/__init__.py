"""The HTTP side: OpenAI's routes over an engine, and the command `tailrace` that serves them.

Rooms from the bottom to the top, each importing only the rooms before it and the contracts
(`config`, `errors`, `metrics`, `engine_metrics`, `version`):

- `schema`: request bodies and replies as clients write and read them.
- `text`: tokenizers, and text out of tokens.
- `work`: threads and processes for what would hold up the event loop.
- `http`: connections, bodies, admission and what every request passes; knows no route.
- `completions`, `chat`, `scoring`: requests made ready for the engine, and its results as replies.
- `context`: the parts of one server, which handlers work with.
- `routes`: the handlers.
- `app`: the application, put together.
- `bench`: the client that measures any server; it uses nothing of the rooms above.
- `command`, `cli`: settings, start and end of the process.

`docs_assets` holds the page at `/docs`.
"""
