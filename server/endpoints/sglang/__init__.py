"""Routes by which trainers steer a server, as SGLang has them."""
