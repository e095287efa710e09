"""Payloads and results of every size, and ends amid their transfer (contract I1; PAIN H10-H12, H36)."""
