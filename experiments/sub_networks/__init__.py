"""Sub-networks of trained models: a data set on which width and depth matter, and a comparison with
pruning.
"""
