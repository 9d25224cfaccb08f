"""Any decoder-only architecture on transformers' own modules, over our paged attention.

Read model, which takes the others in this order: checks (refuses by the config), construct (makes
the module), attention, masks and adapters (learn and route its attention), lm_head, and proof
(compares logits with transformers').
"""
