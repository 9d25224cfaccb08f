"""A model's files: folder finds them, sources reads tensors from them."""
