"""A model of one layer, and the shape of a head of it."""

from transformers import LlamaConfig

HIDDEN = 32
CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=HIDDEN,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    tie_word_embeddings=True,
)
