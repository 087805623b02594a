"""Search spaces in plain PyTorch, as users write them: no part of the project has seen their
networks.
"""
