"""`/tokenize`, `/detokenize`, `/tokenizer_info`."""
