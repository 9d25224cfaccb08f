"""The distance of a trainer's logprobs from a server's, for `tailrace compare-logprobs`."""
