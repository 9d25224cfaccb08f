"""What `tailrace verify` runs: the sampler, a model beside its reference, and bits in every way."""
