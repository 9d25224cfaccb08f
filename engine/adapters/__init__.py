"""LoRA adapters: folders as PEFT writes them, copies on the host, and slots on the device.

`config` says what adapter_config.json may ask for, `folder` reads tensors and `fit` checks them
against the base's modules, which `targets` lists. `stacks` holds the slots, `store` the copies and
which of them are in slots.
"""
