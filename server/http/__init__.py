"""What lies between a connection and a route's handler.

In the order in which a request meets them:

- `server`, `protocol`, `connections`: uvicorn with bounds on headers, time and open files.
- `outcomes`: each request is counted, timed and logged (`account`, `access_log`).
- `auth`: API keys, hosts and origins (`origins`), and whether the server takes requests
  (`lifecycle`).
- `body`, `content`: the body, bounded, decompressed and parsed; large ones in other processes
  (`large_bodies`), as the memory for them allows (`body_memory`).
- `admission`: how many choices may wait; `disconnect`: work ends when its client has gone.
- `reply`, `failures`: JSON replies, and the engine's failures as errors.
"""
