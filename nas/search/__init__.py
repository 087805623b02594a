"""Searches: the loop, samplers, surrogates, evaluators, Pareto fronts, storages and workers."""
