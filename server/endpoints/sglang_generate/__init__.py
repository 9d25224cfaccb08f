"""`/generate`, as SGLang has it."""
