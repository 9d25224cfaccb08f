"""Several replicas of one engine behind one server: what is decided, counted and sent to them.

Nothing here knows how replicas are placed or reached; `server.fleet.ray_serve` does that, by Ray Serve.
"""
