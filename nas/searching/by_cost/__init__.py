"""Search by cost: trainings are begun, paused after a few epochs, continued or stopped."""
