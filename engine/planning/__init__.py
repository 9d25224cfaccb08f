"""Plans the steps of choices and makes outputs of their results, on the host and without torch.

In reading order: `scheduler` (who runs and how many tokens), `prefixes` (blocks to share),
`drafting` (when rows draft), `unfinished` (choices from submission to end), `settle` (a result
entered into the rows), `outputs` (what frontends are sent), `timings` (histograms).
"""
