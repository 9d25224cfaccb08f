"""Routes by which trainers steer a server, as vLLM has them."""
