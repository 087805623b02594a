"""Search by cost: start trainings, pause them after a few epochs, continue or stop them."""
