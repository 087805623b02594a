from .sampler import RLMSampler

__all__ = ["RLMSampler"]
