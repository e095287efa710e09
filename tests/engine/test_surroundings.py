"""Odd programs around a queue, and what its workers find around them (contract C5, C7, H; PAIN H23-H32)."""
