"""Analyses: everything that is measured about a model. See `strop.analysis.frame`."""
