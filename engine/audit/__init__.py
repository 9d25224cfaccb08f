"""Derives drawn tokens again from the noise contract: what `tailrace audit` does.

In reading order: `drawn` (what is audited and what is found), `distribution` (a position's logits
after a request's parameters, and what noise of the logits could make of them), `redraw` (one token
drawn again), `engine_logits` (logits of given tokens, by an engine of this process).
"""
