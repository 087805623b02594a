"""Networks measured in many runtimes on one machine, and a new runtime from ten measurements."""
