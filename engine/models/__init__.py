"""Models, which implement `engine.contracts.model`.

loader chooses between a family, which decoder runs, and fallback, which runs transformers' modules.
Below them: families are made of layers, layers of formats and weights.
"""
