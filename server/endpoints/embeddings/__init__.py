"""`/v1/embeddings`: texts as vectors, of decoder-only embedding models."""
