"""Trainings that pause: the search continues those that should improve the front most per epoch.

The values come from a table of trainings whose curves this project measured.

python examples/short_trainings.py [FULL_TRAININGS]
"""

import sys

import nas

EPOCHS = 16  # of a full training

if __name__ == "__main__":
    trainings = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    benchmark = nas.load_benchmark("digits-resnet")
    objectives = {"digits_accuracy": "max", "cpu_latency_ms": "min"}
    problem = benchmark.problem(objectives, ["cpu_latency_ms <= 0.2"])
    result = nas.search(
        problem, sampler="rlm", fidelities=[1, 4, EPOCHS], budget=trainings * EPOCHS, seed=0
    )
    print(result.front[list(objectives)].to_string())
    states = [trial.state.name for trial in result.study.trials]
    broken = len(result.ruled_out)  # never trained: their latency was measured first
    paused = states.count("PRUNED") - broken
    print(f"{states.count('COMPLETE')} trainings ended, {paused} pauses, {broken} broke the limit")
