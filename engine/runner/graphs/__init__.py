"""Steps captured as CUDA graphs: decode steps, pieces between attentions, and short forwards."""
