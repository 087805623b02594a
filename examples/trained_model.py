"""A trained model, made faster: its sub-networks inherit its weights, and their latency is measured.

python examples/trained_model.py [EVALUATIONS]
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import nas
from nas.evaluation.training import TrainingTask


def block(channels):
    return nn.Sequential(
        nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.Conv2d(2 * channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
    )


class Net(nn.Module):
    """A small residual network. Any module that `nas text` reads will do."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 3, padding=1)
        self.blocks = nn.ModuleList(block(32) for _ in range(3))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        for residual in self.blocks:
            x = x + residual(x)
        return self.head(x.relu().mean((2, 3)))


def trained_net(steps=200):
    torch.manual_seed(0)
    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 16
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    for _ in range(steps):
        rows = torch.randint(1200, (50,))
        loss = nn.functional.cross_entropy(net(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


if __name__ == "__main__":
    evaluations = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    space = nas.Subnetworks(trained_net(), torch.zeros(1, 1, 8, 8))
    metrics = ("fidelity", "cpu_latency_ms")  # fidelity: % of inputs with the model's own top class
    # No training: the statistics of batch normalizations alone are computed anew.
    measurement = nas.Measurement(
        metrics, nas.load_dataset("digits"), training=TrainingTask(epochs=0)
    )
    problem = nas.Problem(space, measurement, {"fidelity": "max", "cpu_latency_ms": "min"})
    result = nas.search(problem, sampler="rlm", evaluations=evaluations)
    print(result.front[list(metrics)].to_string())
    fastest = result.model(0)  # an nn.Module with the inherited weights
    print(sum(weight.numel() for weight in fastest.parameters()), "parameters")
