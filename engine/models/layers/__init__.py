"""The layers that families are made of."""
