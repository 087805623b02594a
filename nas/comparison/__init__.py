"""Compares predictors, and samplers, over seeds."""
