"""What lies between a connection and a route's handler.

In the order in which a request meets them:

- `server`, `protocol`, `connections`: uvicorn with bounds on headers, time and open files.
- `middleware`: accounts of requests (`account`, `access_log`) and the gate: hosts and origins
  (`origins`), keys, and whether the server takes requests (`lifecycle`).
- `body`, `content`: the body, bounded, decompressed and parsed; `large` ones in other processes, as
  `memory` for them allows.
- `admission`: how many choices may wait; `disconnect`: work ends when its client has gone.
- `reply`, `failures`: JSON replies, and the engine's failures as errors.
"""
