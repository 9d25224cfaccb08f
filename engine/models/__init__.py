"""Models, which implement `engine.contracts.model`.

loader chooses: checkpoint finds and reads weights, fused has our own modules, fallback runs
transformers' modules.
"""
