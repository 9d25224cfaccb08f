"""`/generative_scoring` and `/v1/score`."""
