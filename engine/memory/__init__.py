"""What layers keep of a row: the contract that planning, startup, the runner and layers share."""
