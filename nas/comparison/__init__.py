"""Predictors and samplers side by side, over seeds."""
