"""What comes from strangers, and what must not reach them: code that a recipe names, weights and
model code, secrets.

Imports nothing heavy, and of the other rooms only how `pipeline` reads YAML and references.
"""
