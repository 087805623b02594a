"""The weightless graph: its nodes, its builder, and what each operator computes and costs."""
