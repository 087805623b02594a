"""Residual networks for the digits of scikit-learn: accuracy against multiply-accumulates."""

import sys
from pathlib import Path

import optuna
import optunahub
import torch
from sklearn.datasets import load_digits
from torch import nn

TRIALS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
EPOCHS = 5
images, labels = load_digits(return_X_y=True)
x = torch.tensor(images).float().reshape(-1, 1, 8, 8) / 16
y = torch.tensor(labels)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def build(trial):
    width = trial.suggest_int("width", 4, 24, step=4)
    kernel = trial.suggest_categorical("kernel", [1, 3, 5])
    layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    for _ in range(trial.suggest_int("depth", 1, 4)):
        convolution = nn.Conv2d(width, width, kernel, padding=kernel // 2)
        layers.append(Residual(convolution, nn.BatchNorm2d(width), nn.ReLU()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


build.example_input = x[:1]


def objective(trial):
    architecture = sampler.space.choose(trial)
    model = sampler.space.module(architecture)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(EPOCHS):
        for rows in torch.randperm(1000).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    right = model.eval()(x[1000:]).argmax(1) == y[1000:]
    return 100 * float(right.float().mean()), sampler.space.flops(architecture)


if __name__ == "__main__":
    registry = Path(__file__).parents[2]  # the folder that holds samplers/rlm
    module = optunahub.load_local_module("samplers/rlm", registry_root=str(registry))
    sampler = module.RLMSampler(
        build, {"accuracy": "max", "flops": "min"}, base="rlm-generated", n_startup=8
    )
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    study.optimize(objective, n_trials=TRIALS)
    for trial in sorted(study.best_trials, key=lambda trial: trial.values[1]):
        print(f"{trial.values[0]:.1f} % with {trial.values[1]:,.0f} multiply-accumulates")
