"""Explanations of errors: the causes and the cure of each."""
