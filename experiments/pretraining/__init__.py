"""The pretraining corpus, and the commands that train the shipped checkpoints."""
