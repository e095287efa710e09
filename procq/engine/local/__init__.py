"""The engine of one machine: attempts run in spawned worker processes."""
