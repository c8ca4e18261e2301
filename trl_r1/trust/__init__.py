"""What comes from strangers, and what must not reach them: code that a recipe names, weights and
model code, secrets.

Imports nothing heavy, and nothing of the other rooms but `pipeline`'s reading of YAML.
"""
