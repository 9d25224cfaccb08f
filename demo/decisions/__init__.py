"""States with questions that the demo model learns to answer, as `/v1/decisions` asks them.

In reading order: `words` (what they are made of), `decision` (a question with its right answer),
`tickets`, `tables` and `exchanges` (the three kinds of states), `drawn` (all of them, from a seed).
"""
