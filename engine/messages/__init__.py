"""What crosses between a frontend and the engine: requests in, one `StepOutput` a step out.

Both directions are one message type each, of which `codec` makes bytes. No torch.
"""
