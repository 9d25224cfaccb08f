"""Parameters of an engine in the trainer's process, which server mode never makes."""


class StructuredOutputsParams:
    """How such an engine is held to a grammar."""
