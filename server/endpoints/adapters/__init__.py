"""`/v1/load_lora_adapter`, `/v1/unload_lora_adapter`."""
