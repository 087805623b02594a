"""Searches: the loop, samplers, surrogates, Pareto fronts, storages, and where objective values come from."""
