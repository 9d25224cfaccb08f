"""Several fronts of one server: each answers HTTP, and a supervisor starts and ends them."""
