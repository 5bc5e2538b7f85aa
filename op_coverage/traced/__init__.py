"""Calls that were traced out of models, made into samples: `lane` chooses, `calls` and `values` make, `like` judges."""
