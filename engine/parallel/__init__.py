"""One engine over several ranks, a process each.

Rank 0 is the engine process: it plans, and sends every plan to the others before it runs it
itself. Read processes (the other ranks), messages (what they are sent), lead (the runner that sends
them) and collectives (what ranks exchange inside a step).
"""
