"""Formats derived from a model's chat template, where none of the known ones fits.

A template renders conversations with made-up names, arguments, ids and thoughts (`probe`). Where
these are in the text of a reply (`scene`), and what is between them, shows how the model writes a
call (`calls`) and a thought (`thoughts`). The difference between one call and two shows what
belongs to each and what to all of them (`atoms`). The result is a format like those in `formats/`
(`bodies`, `fields`, `assemble`, `states`). `learn` keeps it only if conversations that were
rendered are read back as they were (`check`).
"""
