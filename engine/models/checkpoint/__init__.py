"""A model's files: folder finds them, weights reads tensors from them."""
