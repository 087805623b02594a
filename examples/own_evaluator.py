"""An evaluator of your own: a short training, and latency on a device that only you can reach.

python examples/own_evaluator.py [EVALUATIONS]
"""

import sys
import timeit

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_digits

import nas
from nas.evaluation.module import GraphModule

IMAGES, LABELS = (torch.tensor(array) for array in load_digits(return_X_y=True))
IMAGES = IMAGES.float().reshape(-1, 1, 8, 8) / 16


class Board(nas.Evaluator):
    """Trains on digits. The device is reached from here: it measures before anything is trained."""

    metrics = ("accuracy", "board_ms")
    trained = ("accuracy",)

    def measure(self, architecture, log):
        model = self.space.to_onnx(architecture).SerializeToString()
        session = onnxruntime.InferenceSession(model)  # send the file to your board instead
        image = {session.get_inputs()[0].name: IMAGES[:1].numpy()}
        seconds = timeit.repeat(lambda: session.run(None, image), number=10, repeat=9)
        return {"board_ms": 100 * float(np.median(seconds))}  # of one run

    def train(self, architecture, observed, log, segment=None):
        torch.manual_seed(0)
        model = GraphModule(self.space.graph(architecture))
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        for rows in torch.randperm(1200).split(40):
            loss = torch.nn.functional.cross_entropy(model(IMAGES[rows]), LABELS[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = model.eval()(IMAGES[1200:]).argmax(1) == LABELS[1200:]
        return {**observed, "accuracy": 100 * right.float().mean().item()}


if __name__ == "__main__":
    from search_spaces import get_space

    evaluator = Board()
    evaluator.space = get_space("tiny-resnet", input_shape=(1, 8, 8))
    objectives = {"accuracy": "max", "board_ms": "min"}
    problem = nas.Problem(evaluator.space, evaluator, objectives, ["board_ms <= 1"])
    evaluations = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    print(nas.search(problem, sampler="rlm", evaluations=evaluations).front.to_string())
