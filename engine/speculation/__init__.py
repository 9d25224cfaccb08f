"""Drafters, which implement `engine.contracts.drafter`: they propose tokens that a step verifies.

Read make_drafter, then ngram and suffix (no model), draft_model, and eagle with eagle_heads and
eagle_loader; cache, drafter_inputs and draft_logits are what these share.
"""
