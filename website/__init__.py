"""The documentation as a site: `make docs` builds it of `docs/` and of the code, by mkdocs.

In reading order: `hooks` (what mkdocs calls), `links` (where pages are), `reference` (pages made of
the code), `figures` (a page of the measured figures), `pictures` (the sampler, drawn),
`canvas` (how anything is drawn), `noise_vectors` (test vectors of the noise contract). Nothing that
a reader's browser loads comes from another host.
"""
