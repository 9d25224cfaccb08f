"""The formats that are known, one page each, in the order in which templates are compared."""
