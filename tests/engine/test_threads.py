"""Many threads at once, and calls from callbacks: no wake-up is lost (contract C6, C8, F4, G4; PAIN H04, H34, H42)."""
