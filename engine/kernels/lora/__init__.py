"""Low-rank adapters beside products: which tokens have which, and what they add to the results."""
