"""One engine over several ranks, a process each.

Rank 0 is the engine process: it plans, and tells every plan to the others before it runs it
itself. Read processes (the other ranks), messages (what they are sent), lead (the runner that tells
them) and collectives (what ranks tell each other inside a step).
"""
