"""Several replicas of one engine behind one server: what is decided, counted and sent to them.

Nothing here knows how replicas are placed or reached; `ray_serve`, high above the
rest of this room, does that by Ray Serve.
"""
