"""`/inference/v1/generate`: token ids in, token ids out, as vLLM has it."""
